"""Figures of a run."""

from __future__ import annotations

import statistics
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.router.fleet.report import Prices, jain, percentile, render, report
from sluice.router.fleet.simulation import FleetConfig, Outcome, Run
from sluice.router.fleet.trace import TeamShare, TraceRequest
from sluice.router.pool.fair_queue import Shed

CONFIG = FleetConfig(replicas=2, block_tokens=100, ttft_slo=1.0)


def served(
    time: float, ttft: float, *, team: str = "a", cached: int = 0, output: int = 11
) -> Outcome:
    request = TraceRequest(time, 200, output, (1, 2), team)
    first = time + ttft
    return Outcome(request, time + ttft / 2, first, first + 1.0, 0, cached)


def refused(time: float) -> Outcome:
    request = TraceRequest(time, 200, 11, (1, 2), "b")
    return Outcome(request, shed=Shed("x", 2, "wait"), shed_at=time)


RUN = Run(
    CONFIG,
    [served(0.0, 0.5), served(1.0, 1.5, cached=199), served(2.0, 0.5, team="b"), refused(4.0)],
    [300, 100],
    36.0,
)


def test_the_figures_of_a_run() -> None:
    figures = report(RUN, Prices(gpus_per_replica=2, gpu_hour_usd=3.0))
    assert (figures.requests, figures.completed, figures.sheds) == (4, 3, 1)
    assert figures.sheds_by_reason == {"wait": 1}
    assert figures.ttft_mean_s == pytest.approx(2.5 / 3)
    assert figures.ttft_p50_s == pytest.approx(0.5)
    assert figures.itl_mean_s == pytest.approx(0.1)
    assert figures.hit_rate == pytest.approx(2 / 6)
    assert figures.hit_rate_tokens == pytest.approx(199 / 600)
    assert figures.prefill_imbalance == pytest.approx(1.5)
    assert figures.goodput == 0.5
    assert figures.goodput_rps == 0.5
    assert figures.gpu_hours == pytest.approx(0.04)
    assert figures.cost_usd == pytest.approx(0.12)
    assert figures.cost_per_million_tokens == pytest.approx(0.12 / 633e-6)
    assert figures.teams["a"].service == 444
    assert figures.teams["b"].sheds == 1
    assert figures.teams["b"].goodput == 0.5
    assert figures.tiers["interactive_ttft_p50_s"] == pytest.approx(0.5)


def test_goodput_may_ask_for_steady_tokens() -> None:
    strict = replace(RUN, config=replace(CONFIG, itl_slo=0.05))
    assert report(strict).goodput == 0.0


def test_nothing_served_is_no_error() -> None:
    figures = report(Run(CONFIG, [refused(0.0)], [0, 0], 0.0))
    assert figures.ttft_mean_s is None
    assert figures.cost_per_million_tokens is None
    assert figures.prefill_imbalance == 0.0
    assert "-" in render(figures)


def test_fairness_knows_the_weights() -> None:
    heavy = replace(CONFIG, teams=(TeamShare("a", weight=2.0),))
    run = Run(heavy, [served(0.0, 0.1), served(0.0, 0.1), served(0.0, 0.1, team="b")], [1, 1], 2.0)
    assert report(run).fairness_jain == pytest.approx(1.0)


def test_people_can_read_it_and_programs_too() -> None:
    text = render(report(RUN))
    assert "TTFT" in text
    assert "team" in text
    parsed = msgspec.json.decode(msgspec.json.encode(report(RUN)))
    assert parsed["ttft_mean_s"] == pytest.approx(2.5 / 3)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=40))
def test_percentiles_are_the_common_ones(values: list[float]) -> None:
    ordered = sorted(values)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in (50, 90, 99):
        assert percentile(ordered, percent) == pytest.approx(cuts[percent - 1])


def test_equal_shares_are_fair() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0]) == pytest.approx(0.5)
    assert jain([0.0, 0.0]) == 1.0
