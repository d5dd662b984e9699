"""Thresholds that give tiers their shares."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.router.auto.calibration import (
    ENOUGH,
    WINDOW,
    Calibration,
    Cut,
    Window,
    cut_at,
    cuts_of,
)
from tests.router.auto.samples import policy

#: What stands for the conversations that are taken first and last among equals.
FIRST, LAST = b"\x00" * 16, b"\xff" * 16

scores = st.lists(st.sampled_from([0.0, 0.2, 0.25, 0.5, 1.0]) | st.floats(0, 1), min_size=1)


def share_of(cut: Cut, of: list[float]) -> float:
    """The share that is taken, in expectation over luck."""
    taken = sum(1.0 if each > cut.score else cut.part * (each == cut.score) for each in of)
    return taken / len(of)


@given(scores, st.floats(0, 1))
def test_a_cut_leaves_the_share_above_it_whatever_the_ties(of: list[float], share: float) -> None:
    assert share_of(cut_at(sorted(of), share), of) == pytest.approx(share, abs=1e-9)


@given(scores)
def test_nothing_and_everything(of: list[float]) -> None:
    of.sort()
    nothing, everything = cut_at(of, 0.0), cut_at(of, 1.0)
    assert not any(nothing.takes(each, FIRST) for each in of)
    assert all(everything.takes(each, LAST) for each in of)


def test_luck_decides_among_equals() -> None:
    cut = cut_at([0.5] * 10, 0.3)
    assert (cut.takes(0.5, FIRST), cut.takes(0.5, LAST)) == (True, False)


def test_shares_of_several_tiers_lie_above_each_other() -> None:
    tiers = (
        {"name": "a", "models": {"a": 1}},
        {"name": "b", "models": {"b": 1}, "share": 0.3},
        {"name": "c", "models": {"c": 1}, "share": 0.2},
    )
    of = [number / 1000 for number in range(1000)]
    low, high = cuts_of(policy(*tiers), of)
    assert (low.score, high.score) == (0.5, 0.8)


def test_fixed_scores_are_taken_as_they_are() -> None:
    tiers = (
        {"name": "a", "models": {"a": 1}},
        {"name": "b", "models": {"b": 1}, "from_score": 0.7},
    )
    assert cuts_of(policy(*tiers), [0.1]) == (Cut(0.7),)


QUANTILES = tuple(number / 100 for number in range(101))


class TestOwnTraffic:
    def share(self, window: Window, low: float, high: float, count: int) -> float:
        """The share of the last half of a team's requests that the strong tier gets."""
        chance, taken = random.Random(5), 0
        for number in range(count):
            score = chance.uniform(low, high)
            [cut] = window.cuts(POLICY, QUANTILES, score)
            taken += number >= count / 2 and cut.takes(score, chance.randbytes(16))
        return taken / (count / 2)

    def test_each_team_has_its_own_thresholds(self) -> None:
        calibration = Calibration()
        ours, others = (calibration.window("auto", team, "s") for team in ("t", "other"))
        assert self.share(ours, 0.8, 0.9, 4_000) == pytest.approx(0.3, abs=0.03)
        [cut] = others.cuts(POLICY, QUANTILES, 0.5)
        assert cut.score == pytest.approx(0.7, abs=0.01)  # the scorer's

    def test_they_follow_traffic_that_changes(self) -> None:
        window = Window("s")
        self.share(window, 0.8, 0.9, WINDOW)
        assert self.share(window, 0.1, 0.2, 4 * WINDOW) == pytest.approx(0.3, abs=0.03)

    def test_few_requests_say_nothing_yet(self) -> None:
        window = Window("s")
        for _ in range(ENOUGH - 2):
            [cut] = window.cuts(POLICY, QUANTILES, 0.1)
        assert cut.score == pytest.approx(0.7, abs=0.01)

    def test_scores_of_before_the_start_count(self) -> None:
        calibration = Calibration()
        for number in range(500):
            calibration.window("auto", "t", "s").seed([number / 5000])
        [cut] = calibration.window("auto", "t", "s").cuts(POLICY, QUANTILES, 0.1)
        assert cut.score == pytest.approx(0.07, abs=0.001)

    def test_scores_of_another_scorer_do_not(self) -> None:
        calibration = Calibration()
        calibration.window("auto", "t", "old").seed([0.01] * 500)
        [cut] = calibration.window("auto", "t", "new").cuts(POLICY, QUANTILES, 0.1)
        assert cut.score == pytest.approx(0.7, abs=0.01)

    def test_another_policy_is_followed_at_once(self) -> None:
        window = Window("s")
        window.cuts(POLICY, QUANTILES, 0.5)
        tiers = ({"name": "a", "models": {"a": 1}}, {"name": "b", "models": {"b": 1}, "share": 1.0})
        [cut] = window.cuts(policy(*tiers), QUANTILES, 0.5)
        assert cut.takes(0.0, LAST)


POLICY = policy()


def test_a_window_is_looked_at_again_however_its_scores_come() -> None:
    window = Calibration().window("auto", "t", "s")
    [cut] = window.cuts(POLICY, QUANTILES, 0.1)
    assert window.left == 99
    window.take([0.1] * 95)
    assert window.left == 4
    window.take([0.1] * 10)  # of two names of the alias, each of which knew of the first 90
    assert window.left == 0
    assert window.cuts(POLICY, QUANTILES, 0.1) != (cut,)
    assert window.left == 93
