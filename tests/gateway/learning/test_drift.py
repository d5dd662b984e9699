"""Whether the traffic is another, and whether answers are worse."""

from __future__ import annotations

import random

import pytest

from sluice.gateway.learning.drift import (
    Outcomes,
    edges_of,
    outcomes_of,
    shares_of,
    stability_index,
    sure_drop,
)

RANDOM = random.Random(0)


def scores(mean: float, count: int = 1000) -> list[float]:
    return [RANDOM.gauss(mean, 0.1) for _ in range(count)]


def test_the_same_traffic_has_an_index_of_next_to_nothing() -> None:
    born = scores(0.5)
    edges = edges_of(born)
    shares = shares_of(born, edges)
    assert len(shares) == 10
    assert shares == pytest.approx([0.1] * 10, abs=0.01)
    assert stability_index(shares, shares_of(scores(0.5), edges)) < 0.05


def test_other_traffic_has_a_high_one() -> None:
    born = scores(0.5)
    edges = edges_of(born)
    assert stability_index(shares_of(born, edges), shares_of(scores(0.6), edges)) > 0.2


def test_many_equal_scores_are_one_part() -> None:
    born = [0.5] * 900 + [0.7] * 100
    edges = edges_of(born)
    shares = shares_of(born, edges)
    assert len(edges) <= 2
    assert sum(shares) == pytest.approx(1)
    assert stability_index(shares, shares) == 0


def test_a_part_that_nobody_is_in_is_no_infinity() -> None:
    assert 0 < stability_index([0.5, 0.5], [1.0, 0.0]) < 10


class TestOutcomes:
    def test_few_say_nothing(self) -> None:
        assert outcomes_of([1.0] * 49) is None

    def test_mean_and_variance(self) -> None:
        found = outcomes_of([0.0, 1.0] * 50)
        assert found is not None
        assert (found.count, found.mean, round(found.variance, 4)) == (100, 0.5, 0.2525)

    def test_chance_is_no_drop(self) -> None:
        assert sure_drop(Outcomes(100, 0.80, 0.16), Outcomes(100, 0.75, 0.19)) == 0

    def test_a_sure_drop_is_less_than_what_is_seen(self) -> None:
        drop = sure_drop(Outcomes(1000, 0.80, 0.16), Outcomes(1000, 0.60, 0.24))
        assert drop == pytest.approx(0.2 - 1.96 * 0.02)

    def test_better_is_no_drop(self) -> None:
        assert sure_drop(Outcomes(1000, 0.6, 0.2), Outcomes(1000, 0.9, 0.1)) == 0
