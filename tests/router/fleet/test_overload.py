"""What an overloaded pool still does for whom: the issue's figures, in virtual time."""

from __future__ import annotations

import pytest

from sluice.router.fleet.report import report, within_slo
from sluice.router.fleet.simulation import EngineName, FleetConfig, Run, simulate
from sluice.router.fleet.trace import TeamShare, TraceRequest
from tests.router.fleet.workloads import merged, poisson

REPLICAS = 8
SECONDS = 60.0
CAPACITY = REPLICAS * 8_000.0
INPUT_TOKENS = 2_048
REQUESTS_A_SECOND = CAPACITY / INPUT_TOKENS

pytestmark = pytest.mark.slow

ENGINES = pytest.mark.parametrize("engine", ["queue", "vllm"])


def fleet(engine: EngineName, gateways: int = 1) -> FleetConfig:
    return FleetConfig(
        replicas=REPLICAS, blocks=2_000, engine=engine, ttft_slo=2.0, gateways=gateways, seed=1
    )


def tokens_in_time(run: Run) -> int:
    """Prompt tokens of requests that were complete within the SLO."""
    return sum(
        outcome.request.input_tokens for outcome in run.outcomes if within_slo(outcome, run.config)
    )


@ENGINES
@pytest.mark.parametrize("gateways", [1, 4])
def test_goodput_holds_at_three_times_the_capacity(engine: EngineName, gateways: int) -> None:
    trace = poisson(3 * REQUESTS_A_SECOND, SECONDS, 1, input_tokens=INPUT_TOKENS)
    run = simulate(fleet(engine, gateways), trace)
    least, in_time = (0.9, 0.99) if gateways == 1 else (0.8, 0.93)
    assert tokens_in_time(run) >= least * CAPACITY * SECONDS
    refused = [outcome for outcome in run.outcomes if outcome.shed is not None]
    assert len(refused) > len(trace) / 2
    at_the_door = sum(outcome.shed_at == outcome.request.time for outcome in refused)
    assert at_the_door > 0.85 * len(refused)
    served = [outcome for outcome in run.outcomes if outcome.ended is not None]
    assert sum(within_slo(outcome, run.config) for outcome in served) > in_time * len(served)


@pytest.mark.parametrize(
    ("engine", "part_of_share"), [("queue", 0.5), ("queue", 0.9), ("vllm", 0.5), ("vllm", 0.7)]
)
def test_a_team_that_offers_ten_times_its_share_hurts_itself(
    engine: EngineName, part_of_share: float
) -> None:
    share = REQUESTS_A_SECOND / 4
    others = merged(*(poisson(part_of_share * share, SECONDS, 1, team=team) for team in "abc"))
    flood = poisson(10 * share, SECONDS, 1, team="flood")
    alone = report(simulate(fleet(engine), others))
    beside = report(simulate(fleet(engine), merged(others, flood)))
    for team in "abc":
        before, after = alone.teams[team].ttft_p90_s, beside.teams[team].ttft_p90_s
        assert before is not None
        assert after is not None
        assert after <= 1.2 * before, team
        assert beside.teams[team].sheds == 0
    assert beside.teams["flood"].sheds > 0.5 * beside.teams["flood"].requests


@pytest.mark.parametrize(
    ("prompt", "answer", "capacity"),
    [(1_020, 32, 15.0), (300, 100, 18.0), (1_000, 64, 15.9), (100, 32, 61.0)],
)
def test_the_same_before_one_engine_that_batches_sixteen(
    prompt: int, answer: int, capacity: float
) -> None:
    """What has begun cannot be taken back there, and nobody else has room meanwhile."""
    config = FleetConfig(
        replicas=1,
        blocks=2_000,
        engine="vllm",
        ttft_slo=2.0,
        max_num_seqs=16,
        decode_seconds=0.008,
        prefill_rate=20_000,
        seed=1,
    )

    def offered(team: str, rate: float) -> list[TraceRequest]:
        return poisson(rate, SECONDS, 1, team=team, input_tokens=prompt, output_tokens=answer)

    others = merged(*(offered(team, 0.7 * capacity / 4) for team in "abc"))
    alone = report(simulate(config, others))
    beside = report(simulate(config, merged(others, offered("flood", 10 * capacity / 4))))
    small = report(simulate(config, merged(others, offered("small", 0.1 * capacity))))
    ratios = []
    for team in "abc":
        before, after = alone.teams[team].ttft_p90_s, beside.teams[team].ttft_p90_s
        assert before is not None
        assert after is not None
        ratios.append(after / before)
        assert beside.teams[team].sheds == 0
        assert small.teams[team].sheds <= 2  # that another asks for less does not limit them
    assert sum(ratios) / 3 <= 1.25
    served = beside.teams["flood"].requests - beside.teams["flood"].sheds
    assert served > 0.06 * capacity * SECONDS


def test_weights_divide_an_overloaded_pool() -> None:
    config = fleet("queue")
    gold = poisson(2 * REQUESTS_A_SECOND, SECONDS, 1, team="gold")
    tin = poisson(2 * REQUESTS_A_SECOND, SECONDS, 1, team="tin")
    teams = (TeamShare("gold", weight=3.0), TeamShare("tin"))
    weighted = FleetConfig(
        replicas=config.replicas, blocks=config.blocks, ttft_slo=2.0, teams=teams, seed=1
    )
    result = report(simulate(weighted, merged(gold, tin)))
    assert 2.4 < result.teams["gold"].service / result.teams["tin"].service < 3.6
    assert result.fairness_jain > 0.98
