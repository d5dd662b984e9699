"""What is taken for generated of an answer of which nothing was seen."""

from __future__ import annotations

import pytest

from sluice.gateway.output_rates import OutputRates


def test_it_follows_what_whole_answers_show() -> None:
    rates = OutputRates()
    rates.learn("p/m", 2.0, 100)
    assert rates.likely("p/m", 1.0, 1_000) == 50
    rates.learn("p/m", 1.0, 150)
    assert rates.likely("p/m", 1.0, 1_000) == 60


@pytest.mark.parametrize(
    ("deployment", "most", "tokens"), [("p/m", 30, 30), ("p/m", None, 0), ("p/other", 30, 0)]
)
def test_it_has_a_bound_and_guesses_nothing(deployment: str, most: int | None, tokens: int) -> None:
    rates = OutputRates()
    rates.learn("p/m", 1.0, 50)
    for seconds, none in ((0.0, 10), (1.0, 0)):
        rates.learn("p/m", seconds, none)  # which says nothing
    assert rates.likely(deployment, 1.0, most) == tokens
