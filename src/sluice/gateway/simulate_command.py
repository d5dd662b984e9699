"""`sluice simulate`: a trace, a fleet that does not exist, and what would come of it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from sluice.router.fleet.plots import PlotsUnavailable, draw
from sluice.router.fleet.report import Prices, render, report
from sluice.router.fleet.simulation import EngineName, FleetConfig, simulate
from sluice.router.fleet.trace import TeamShare, TraceError, assign, read_trace
from sluice.router.pool.fair_queue import QueuePolicy
from sluice.router.pool.placement import POLICIES, PolicyName

_count = click.IntRange(1)
_positive = click.FloatRange(0, min_open=True)


def _team(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> object:
    """NAME[=SHARE[:WEIGHT]] as values."""
    teams = []
    for value in values:
        name, _, figures = value.partition("=")
        share, _, weight = figures.partition(":")
        try:
            team = TeamShare(name, float(share or 1), float(weight or 1))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not NAME=SHARE:WEIGHT") from None
        if not name or not 0 < team.share < float("inf") or not 0 < team.weight < float("inf"):
            raise click.BadParameter(f"{value!r}: a name, and figures above 0, are needed")
        teams.append(team)
    return tuple(teams)


@click.command("simulate")
@click.option(
    "--trace",
    "trace_path",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON lines in Mooncake's format.",
)
@click.option("--limit", type=_count, help="Read that many requests only.")
@click.option("--speed-up", default=1.0, show_default=True, type=_positive, help="Of the arrivals.")
@click.option("--replicas", default=8, show_default=True, type=_count)
@click.option("--blocks-per-replica", default=1000, show_default=True, type=_count)
@click.option("--block-size", default=512, show_default=True, type=_count, help="Tokens.")
@click.option(
    "--prefill-rate", default=8000.0, show_default=True, type=_positive, help="Tokens a second."
)
@click.option(
    "--decode-seconds",
    default=0.02,
    show_default=True,
    type=_positive,
    help="For an output token, at least.",
)
@click.option(
    "--engine",
    default="queue",
    show_default=True,
    type=click.Choice(["queue", "vllm"]),
    help="queue: serial prefill, decoding for nothing. vllm: its step loop.",
)
@click.option("--max-num-seqs", default=256, show_default=True, type=_count)
@click.option("--max-num-batched-tokens", default=2048, show_default=True, type=_count)
@click.option(
    "--policy", default="prefix_load", show_default=True, type=click.Choice(list(POLICIES))
)
@click.option("--queue-weight", type=click.FloatRange(0), help="Of prefix_load.")
@click.option("--gateways", default=1, show_default=True, type=_count)
@click.option(
    "--hint-delay",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds from one gateway to the others.",
)
@click.option(
    "--index-factor",
    default=1.0,
    show_default=True,
    type=_positive,
    help="Believed over true size of the caches.",
)
@click.option(
    "--ttft-slo", type=_positive, help="Seconds; bounds queues, and refuses what is late."
)
@click.option("--itl-slo", type=_positive, help="Seconds; for goodput.")
@click.option("--ageing", default=10.0, show_default=True, type=_positive, help="Seconds a band.")
@click.option("--max-waiting", default=10_000, show_default=True, type=_count)
@click.option(
    "--team",
    "teams",
    multiple=True,
    callback=_team,
    metavar="NAME=SHARE:WEIGHT",
    help="Repeatable: who sends which share of the requests that have no team.",
)
@click.option("--batch-share", default=0.0, show_default=True, type=click.FloatRange(0, 1))
@click.option("--gpus-per-replica", default=1, show_default=True, type=_count)
@click.option("--gpu-hour-usd", default=2.0, show_default=True, type=click.FloatRange(0))
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Write PNGs there.")
def simulate_command(
    trace_path: Path,
    limit: int | None,
    speed_up: float,
    replicas: int,
    blocks_per_replica: int,
    block_size: int,
    prefill_rate: float,
    decode_seconds: float,
    engine: EngineName,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    policy: PolicyName,
    queue_weight: float | None,
    gateways: int,
    hint_delay: float,
    index_factor: float,
    ttft_slo: float | None,
    itl_slo: float | None,
    ageing: float,
    max_waiting: int,
    teams: tuple[TeamShare, ...],
    batch_share: float,
    gpus_per_replica: int,
    gpu_hour_usd: float,
    seed: int,
    as_json: bool,
    plots: Path | None,
) -> None:
    """Replay a trace through the pool's own code and simulated replicas, in virtual time."""
    config = FleetConfig(
        replicas=replicas,
        blocks=blocks_per_replica,
        block_tokens=block_size,
        prefill_rate=prefill_rate,
        decode_seconds=decode_seconds,
        engine=engine,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        policy=policy,
        queue_weight=queue_weight,
        gateways=gateways,
        hint_seconds=hint_delay,
        index_factor=index_factor,
        ttft_slo=ttft_slo,
        itl_slo=itl_slo,
        queue=QueuePolicy(ageing=ageing, max_waiting=max_waiting),
        teams=teams,
        seed=seed,
    )
    try:
        trace = assign(read_trace(trace_path, speed_up, limit), teams, batch_share, seed)
        run = simulate(config, trace)
        pictures = draw(run, plots) if plots else []
    except (TraceError, PlotsUnavailable, OSError) as error:
        raise click.ClickException(f"{trace_path}: {error}") from None
    figures = report(run, Prices(gpus_per_replica, gpu_hour_usd))
    if as_json:
        click.echo(msgspec.json.encode(figures))
        return
    click.echo(render(figures))
    for picture in pictures:
        click.echo(f"wrote {picture}")
