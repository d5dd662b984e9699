"""What a run amounts to: times, cache, fairness, refusals, and what the GPUs cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import msgspec

from sluice.router.fleet.simulation import FleetConfig, Outcome, Run


@dataclass(frozen=True, slots=True)
class Prices:
    """What a replica costs.

    Attributes:
        gpus_per_replica: GPUs that one replica takes.
        gpu_hour_usd: for each of them.
    """

    gpus_per_replica: int = 1
    gpu_hour_usd: float = 2.0


class TeamReport(msgspec.Struct, frozen=True):
    """One team's part of a run.

    Attributes:
        requests: that it sent.
        completed: of those, answered to the end.
        sheds: of those, refused.
        service: input tokens and twice the output tokens of completed requests.
        ttft_p50_s: median seconds to the first token; None without any.
        ttft_p90_s: nine in ten were at least as fast.
        queue_p90_s: the same of the wait in the gateway.
        goodput: part of its requests that was complete within the SLO.
    """

    requests: int
    completed: int
    sheds: int
    service: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    queue_p90_s: float | None
    goodput: float


class Report(msgspec.Struct, frozen=True):
    """A run in figures; times are seconds, `None` where nothing was measured.

    Attributes:
        policy: of placement.
        engine: the model of a replica.
        replicas: how many.
        gateways: how many.
        seed: of the run.
        requests: in the trace.
        completed: answered to the end.
        sheds: refused.
        sheds_by_reason: the same by why.
        yields: times that a request was taken back for others.
        duration_s: from the first arrival to the last token.
        ttft_mean_s: from arrival to first token.
        hit_rate: blocks that were cached, of all blocks of the prompts that were computed.
        hit_rate_tokens: the same in tokens.
        prefill_imbalance: the most prompt tokens a replica computed, over the mean.
        goodput: part of all requests that was complete within the SLO.
        goodput_rps: those requests for each second in which requests arrived.
        fairness_jain: Jain's index of the teams' service over their weights; 1 is equal.
        tiers: TTFT by tier.
        teams: by name.
        gpu_hours: of all replicas from begin to end.
        cost_usd: of those.
        cost_per_million_tokens: in USD, prompt and output tokens together.
    """

    policy: str
    engine: str
    replicas: int
    gateways: int
    seed: int
    requests: int
    completed: int
    sheds: int
    sheds_by_reason: dict[str, int]
    yields: int
    duration_s: float
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p90_s: float | None
    itl_p99_s: float | None
    queue_mean_s: float | None
    queue_p99_s: float | None
    hit_rate: float
    hit_rate_tokens: float
    prefill_imbalance: float
    goodput: float
    goodput_rps: float
    fairness_jain: float
    tiers: dict[str, float | None]
    teams: dict[str, TeamReport]
    prompt_tokens: int
    output_tokens: int
    gpu_hours: float
    cost_usd: float
    cost_per_million_tokens: float | None


def report(run: Run, prices: Prices = Prices()) -> Report:
    """Reduce a run to figures.

    Args:
        run: finished.
        prices: of replicas.
    """
    config, outcomes = run.config, run.outcomes
    served = [outcome for outcome in outcomes if outcome.ended is not None]
    ttfts = _sorted(outcome.ttft for outcome in outcomes)
    itls = _sorted(outcome.itl for outcome in served)
    waits = _sorted(_queue_wait(outcome) for outcome in served)
    first, last = outcomes[0].request.time, outcomes[-1].request.time
    duration = run.end - first
    good = sum(within_slo(outcome, config) for outcome in outcomes)
    prompt = sum(outcome.request.input_tokens for outcome in served)
    output = sum(outcome.request.output_tokens for outcome in served)
    gpu_hours = config.replicas * prices.gpus_per_replica * duration / 3600.0
    cost = gpu_hours * prices.gpu_hour_usd
    teams = _teams(outcomes, config)
    weights = {team.name: team.weight for team in config.teams}
    return Report(
        policy=config.policy,
        engine=config.engine,
        replicas=config.replicas,
        gateways=config.gateways,
        seed=config.seed,
        requests=len(outcomes),
        completed=len(served),
        sheds=sum(outcome.shed is not None for outcome in outcomes),
        sheds_by_reason=_reasons(outcomes),
        yields=sum(outcome.yields for outcome in outcomes),
        duration_s=duration,
        ttft_mean_s=_mean(ttfts),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        itl_mean_s=_mean(itls),
        itl_p50_s=percentile(itls, 50),
        itl_p90_s=percentile(itls, 90),
        itl_p99_s=percentile(itls, 99),
        queue_mean_s=_mean(waits),
        queue_p99_s=percentile(waits, 99),
        hit_rate=_hit_rate(served, config.block_tokens),
        hit_rate_tokens=sum(outcome.cached_tokens for outcome in served) / max(1, prompt),
        prefill_imbalance=max(run.computed) * len(run.computed) / max(1, sum(run.computed)),
        goodput=good / len(outcomes),
        goodput_rps=good / max(last - first, 1e-9),
        fairness_jain=jain([team.service / weights.get(name, 1.0) for name, team in teams.items()]),
        tiers=_tiers(outcomes),
        teams=teams,
        prompt_tokens=prompt,
        output_tokens=output,
        gpu_hours=gpu_hours,
        cost_usd=cost,
        cost_per_million_tokens=cost / (prompt + output) * 1e6 if served else None,
    )


def within_slo(outcome: Outcome, config: FleetConfig) -> bool:
    """Whether a request was complete, and in time where its tier has an SLO."""
    if outcome.ended is None or outcome.ttft is None:
        return False
    if outcome.request.tier == "batch":
        return True
    if config.ttft_slo is not None and outcome.ttft > config.ttft_slo:
        return False
    itl = outcome.itl
    return config.itl_slo is None or itl is None or itl <= config.itl_slo


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """A percentile of sorted values, interpolated; None of none."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100.0
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def render(figures: Report) -> str:
    """A report as text for people."""
    lines = [
        f"{figures.requests} requests, {figures.replicas} replicas ({figures.engine}), "
        f"{figures.policy}, {figures.gateways} gateway(s), seed {figures.seed}",
        "",
        f"{'':10} {'mean':>9} {'p50':>9} {'p90':>9} {'p99':>9}",
        _row(
            "TTFT s",
            figures.ttft_mean_s,
            figures.ttft_p50_s,
            figures.ttft_p90_s,
            figures.ttft_p99_s,
        ),
        _row("ITL s", figures.itl_mean_s, figures.itl_p50_s, figures.itl_p90_s, figures.itl_p99_s),
        "",
        f"completed        {figures.completed}",
        f"refused          {figures.sheds} {figures.sheds_by_reason or ''}".rstrip(),
        f"taken back       {figures.yields}",
        f"hit rate         {figures.hit_rate:.3f} of blocks, "
        f"{figures.hit_rate_tokens:.3f} of tokens",
        f"imbalance        {figures.prefill_imbalance:.2f} (most prefill over mean)",
        f"goodput          {figures.goodput:.3f} of requests, {figures.goodput_rps:.2f} requests/s",
        f"fairness         {figures.fairness_jain:.3f} (Jain)",
        f"GPU hours        {figures.gpu_hours:.2f}",
        f"cost             {figures.cost_usd:.2f} USD, "
        f"{_figure(figures.cost_per_million_tokens)} USD for a million tokens",
    ]
    if len(figures.teams) > 1:
        lines += ["", f"{'team':16} {'requests':>9} {'refused':>9} {'TTFT p50':>9} {'TTFT p90':>9}"]
        lines += [
            f"{name:16} {team.requests:9} {team.sheds:9} "
            f"{_figure(team.ttft_p50_s):>9} {_figure(team.ttft_p90_s):>9}"
            for name, team in figures.teams.items()
        ]
    return "\n".join(lines)


def _row(name: str, *values: float | None) -> str:
    return f"{name:10} " + " ".join(f"{_figure(value):>9}" for value in values)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _sorted(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _queue_wait(outcome: Outcome) -> float | None:
    return None if outcome.dispatched is None else outcome.dispatched - outcome.request.time


def _hit_rate(served: Sequence[Outcome], block_tokens: int) -> float:
    # A replica computes at least a prompt's last token, so that a block is counted from there.
    hits = sum(ceil(outcome.cached_tokens / block_tokens) for outcome in served)
    return hits / max(1, sum(len(outcome.request.hashes) for outcome in served))


def _reasons(outcomes: Sequence[Outcome]) -> dict[str, int]:
    reasons: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.shed is not None:
            reasons[outcome.shed.reason] = reasons.get(outcome.shed.reason, 0) + 1
    return reasons


def _tiers(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    return {
        f"{tier}_ttft_p{percent}_s": percentile(
            _sorted(outcome.ttft for outcome in outcomes if outcome.request.tier == tier), percent
        )
        for tier in sorted({outcome.request.tier for outcome in outcomes})
        for percent in (50, 90, 99)
    }


def _teams(outcomes: Sequence[Outcome], config: FleetConfig) -> dict[str, TeamReport]:
    by_team: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_team.setdefault(outcome.request.team, []).append(outcome)
    return {name: _team(by_team[name], config) for name in sorted(by_team)}


def _team(outcomes: Sequence[Outcome], config: FleetConfig) -> TeamReport:
    served = [outcome.request for outcome in outcomes if outcome.ended is not None]
    ttfts = _sorted(outcome.ttft for outcome in outcomes)
    return TeamReport(
        requests=len(outcomes),
        completed=len(served),
        sheds=sum(outcome.shed is not None for outcome in outcomes),
        service=sum(request.input_tokens + 2 * request.output_tokens for request in served),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        queue_p90_s=percentile(_sorted(map(_queue_wait, outcomes)), 90),
        goodput=sum(within_slo(outcome, config) for outcome in outcomes) / len(outcomes),
    )
