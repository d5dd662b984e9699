"""Runs of a small trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.router.fleet.replicas import SerialEngine
from sluice.router.fleet.report import Report, report
from sluice.router.fleet.simulation import EngineName, FleetConfig, simulate
from sluice.router.fleet.trace import assign, read_trace
from sluice.router.pool.placement import POLICIES, PolicyName
from tests.router.fleet.workloads import merged, poisson

TRACE = assign(
    read_trace(Path(__file__).parent / "samples" / "chat.jsonl", speed_up=2.0), (), 0.0, seed=0
)
FLEET = FleetConfig(replicas=4, blocks=120)


def figures(config: FleetConfig) -> Report:
    return report(simulate(config, TRACE))


@pytest.mark.parametrize("engine", ["queue", "vllm"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gateways", [1, 3])
def test_every_request_is_answered(engine: EngineName, policy: PolicyName, gateways: int) -> None:
    result = figures(replace(FLEET, engine=engine, policy=policy, gateways=gateways))
    assert result.completed == len(TRACE)
    assert result.sheds == 0
    assert 0 < result.hit_rate < 1


@pytest.mark.parametrize("engine", ["queue", "vllm"])
def test_the_same_seed_gives_the_same_figures(engine: EngineName) -> None:
    config = replace(FLEET, engine=engine, gateways=2, ttft_slo=2.0)
    first = figures(config)
    assert first == figures(config)
    assert first != figures(replace(config, seed=1))


@pytest.mark.parametrize("engine", ["queue", "vllm"])
def test_placement_by_prefix_pays(engine: EngineName) -> None:
    fleet = replace(FLEET, engine=engine)
    smart = figures(fleet)
    turns = figures(replace(fleet, policy="round_robin"))
    assert smart.hit_rate > 1.3 * turns.hit_rate
    assert smart.ttft_mean_s is not None
    assert turns.ttft_mean_s is not None
    assert smart.ttft_mean_s < 0.75 * turns.ttft_mean_s


def test_one_replica_is_a_queue_that_can_be_worked_out_by_hand() -> None:
    model = SerialEngine(10_000, 512, 8_000.0, 0.02)
    config = FleetConfig(replicas=1, blocks=10_000)
    run = simulate(config, TRACE)
    free, known = 0.0, set[int]()
    for outcome in run.outcomes:
        request = outcome.request
        depth = 0
        while depth < len(request.hashes) and request.hashes[depth] in known:
            depth += 1
        known.update(request.hashes)
        computed = max(1, request.input_tokens - depth * 512)
        free = max(free, request.time) + computed / 8_000.0
        assert outcome.first_token == pytest.approx(free)
    assert model.due is None


def test_gateways_with_slow_news_do_no_better() -> None:
    fresh = figures(replace(FLEET, gateways=4, hint_seconds=0.001))
    stale = figures(replace(FLEET, gateways=4, hint_seconds=30.0))
    assert fresh.ttft_mean_s is not None
    assert stale.ttft_mean_s is not None
    assert fresh.ttft_mean_s < stale.ttft_mean_s


def test_an_index_that_is_too_large_learns() -> None:
    """What the engine reports makes up for most of a wrong idea of the caches' size."""
    busy = replace(FLEET, replicas=3, blocks=60)
    right, wrong = figures(busy), figures(replace(busy, index_factor=4.0))
    assert wrong.hit_rate > 0.9 * right.hit_rate


def test_batch_yields_within_a_step() -> None:
    """A pool full of batch work serves interactive requests almost as if it were empty."""
    batch = poisson(20.0, 60.0, 1, tier="batch", team="nightly", output_tokens=300)
    urgent = poisson(2.0, 60.0, 1, team="people")
    config = FleetConfig(replicas=4, blocks=2_000, engine="vllm", ttft_slo=2.0)
    alone = report(simulate(config, urgent))
    beside = report(simulate(config, merged(urgent, batch)))
    assert beside.yields > 0
    assert beside.completed == beside.requests
    assert beside.teams["people"].sheds == 0
    assert beside.teams["people"].queue_p90_s == 0.0
    quiet, crowded = alone.tiers["interactive_ttft_p90_s"], beside.tiers["interactive_ttft_p90_s"]
    assert quiet is not None
    assert crowded is not None
    longest_step = 2_048 / 8_000
    assert crowded <= quiet + longest_step


@given(st.integers(0, 1_000), st.sampled_from(["queue", "vllm"]), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_accounts_are_closed(seed: int, engine: EngineName, gateways: int) -> None:
    """Each request ends in one way, in a sensible order of events, whatever the load."""
    trace = merged(
        poisson(30.0, 4.0, seed, team="a", output_tokens=20),
        poisson(10.0, 4.0, seed, team="b", tier="batch", output_tokens=20),
    )
    config = FleetConfig(
        replicas=3, blocks=60, engine=engine, gateways=gateways, ttft_slo=1.0, seed=seed
    )
    run = simulate(config, trace)
    for outcome in run.outcomes:
        assert (outcome.ended is None) == (outcome.shed is not None)
        if outcome.shed is not None:
            assert outcome.shed.retry_after >= 1
            assert outcome.request.tier == "interactive"
            assert outcome.shed_at is not None
            assert outcome.shed_at <= outcome.request.time + 1.0
        else:
            assert outcome.dispatched is not None
            assert outcome.first_token is not None
            assert outcome.ended is not None
            assert outcome.request.time <= outcome.dispatched <= outcome.first_token
            assert outcome.first_token <= outcome.ended
