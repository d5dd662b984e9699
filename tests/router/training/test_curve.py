"""The metrics, against sums by hand and against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.router.training.curve import MIN_PAIRED, Curve, Outcomes, gain, measure
from sluice.router.training.rows import NoGap, Row, TooFewLabels


def outcomes_of(pairs: list[tuple[float, float]], groups: int | None = None) -> Outcomes:
    return Outcomes.of(
        [
            Row(b"", strong, weak, group=None if groups is None else str(at % groups))
            for at, (strong, weak) in enumerate(pairs)
        ]
    )


#: Strong is better on the first half only.
HALF = outcomes_of([(1.0, 0.0)] * 50 + [(0.5, 0.5)] * 50)


def curve(scores: list[float], outcomes: Outcomes = HALF) -> Curve:
    return measure(np.array(scores), outcomes, runs=50)


def test_one_constant_is_a_random_order() -> None:
    found = curve([0.3] * 100)
    assert found.apgr.value == pytest.approx(0.5)
    assert found.cpt50.value == pytest.approx(0.5)
    assert found.cpt80.value == pytest.approx(0.8)
    assert (found.apgr.low, found.apgr.high) == pytest.approx((0.5, 0.5))


def test_the_best_order_closes_the_gap_with_half_of_the_calls() -> None:
    found = curve([0.9] * 50 + [0.1] * 50)
    assert found.apgr.value == pytest.approx(0.75)
    assert found.cpt50.value == pytest.approx(0.25)
    assert found.cpt80.value == pytest.approx(0.4)
    assert (found.weak, found.strong) == (0.25, 0.75)
    assert [point.quality.value for point in found.points[::5]] == pytest.approx([0.25, 0.75, 0.75])


def test_the_worst_order_is_as_far_below() -> None:
    assert curve([0.1] * 50 + [0.9] * 50).apgr.value == pytest.approx(0.25)


def test_figures_are_those_of_a_sum_over_every_threshold() -> None:
    random = np.random.default_rng(3)
    pairs = [(float(random.random() < 0.8), float(random.random() < 0.5)) for _ in range(200)]
    scores = random.random(200).round(2)
    outcomes = outcomes_of(pairs)
    strong, weak = np.array(pairs).T
    area, last = 0.0, (0.0, weak.mean())
    for threshold in sorted(set(scores), reverse=True):
        sent = scores >= threshold
        now = (sent.mean(), np.where(sent, strong, weak).mean())
        area += (now[0] - last[0]) * (now[1] + last[1]) / 2
        last = now
    expected = (area - weak.mean()) / (strong.mean() - weak.mean())
    assert measure(scores, outcomes, runs=10).apgr.value == pytest.approx(expected)


def test_intervals_hold_the_value_and_narrow_with_more_rows() -> None:
    def width(times: int) -> float:
        outcomes = outcomes_of(([(1.0, 0.0)] * 20 + [(0.0, 0.0)] * 40) * times)
        scores = np.array(([0.9] * 15 + [0.1] * 45) * times)
        found = measure(scores, outcomes, runs=200).apgr
        assert found.low < found.value < found.high
        return found.high - found.low

    assert width(16) < width(1) / 2.5


def test_rows_of_a_group_are_drawn_together() -> None:
    pairs = [(1.0, 0.0), (0.0, 0.0)] * 100
    scores = np.array([0.9, 0.2, 0.3, 0.8] * 50)
    alone, grouped = (
        measure(scores, outcomes_of(pairs, groups), runs=200).apgr for groups in (None, 4)
    )
    assert grouped.high - grouped.low > alone.high - alone.low


def test_the_gain_is_paired() -> None:
    random = np.random.default_rng(1)
    pairs = [(1.0, float(at % 3 > 0)) for at in range(300)]
    good = np.array([weak + random.random() for _, weak in pairs]) * -1
    found = gain(good, random.random(300), outcomes_of(pairs))
    assert 0 < found.low < found.value < found.high
    same = gain(good, good, outcomes_of(pairs))
    assert (same.low, same.value, same.high) == (0, 0, 0)


def test_too_few_rows_or_no_gap_are_refused() -> None:
    with pytest.raises(TooFewLabels, match=f"{MIN_PAIRED} are needed"):
        outcomes_of([(1.0, 0.0)] * (MIN_PAIRED - 1))
    with pytest.raises(NoGap):
        outcomes_of([(0.5, 0.5)] * 100)
