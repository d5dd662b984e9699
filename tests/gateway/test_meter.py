"""What an exchange is charged, and what `auto` saved by it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.gateway.auth import Principal
from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.meter import Meter
from sluice.gateway.output_rates import OutputRates
from sluice.gateway.registry.prices import PriceBook
from sluice.router.catalog import Tier
from sluice.wire.usage import Usage
from tests.router.auto.samples import choice, model, request

SMALL, LARGE = model("small"), model("large")
HALF = Fraction(1, 2)
PRICES = {
    "small": Price(output=1_000_000, batch_share=HALF),
    "large": Price(output=10_000_000, batch_share=HALF),
}


def exchange() -> Exchange:
    """One that `small` answered with 10 tokens, where `large` would have without `auto`."""
    nobody: Any = None
    made = Exchange(Endpoint.CHAT, {"headers": [], "method": "POST"}, nobody, nobody)
    made.choice = choice()
    made.model_used, made.usage = "small", Usage(output_tokens=10)
    return made


ADMITTED = Admitted(Principal("o", "t", "team", "k"), SMALL, request("hello"), "interactive")


@pytest.mark.parametrize(("tier", "cost", "strong"), [("interactive", 10, 100), ("batch", 5, 50)])
async def test_a_saving_is_of_prices_of_the_same_tier(tier: Tier, cost: int, strong: int) -> None:
    admitted = replace(ADMITTED, tier=tier)
    event = Meter(PRICES, "gateway", OutputRates()).event(exchange(), admitted)
    assert event.decision is not None
    assert (event.cost_nano_usd, event.strong_cost(event.decision)) == (cost, strong)


async def test_requests_of_one_course_are_recorded_each_as_it_was() -> None:
    meter = Meter(PRICES, "gateway", OutputRates())
    first, second = exchange(), exchange()
    assert first.choice is not None
    second.choice = replace(
        first.choice,
        score=0.9,
        reasons=("maths=+0.21",),
        features=b"f",
        tokens=7,
        conversation=b"d",
    )
    second.model_used = "large"  # after a failure of the small one
    one, two, again = (meter.event(each, ADMITTED).decision for each in (first, second, first))
    assert one is not None
    assert one == again
    assert (one.alias, one.mode, one.model, one.scorer) == ("auto", "score", "small", "rule")
    assert (one.needs, one.strong_model, one.threshold) == (("chat",), "large", None)
    assert two == replace(
        one,
        tier_used="quality",
        score=0.9,
        reasons=("maths=+0.21",),
        features=b"f",
        tokens=7,
        conversation=b"d",
    )


async def test_a_new_price_counts_for_courses_that_come_after_it() -> None:
    book = PriceBook(PRICES)
    meter = Meter(book, "gateway", OutputRates())
    before = meter.event(exchange(), ADMITTED)
    book.update({"large": Price(output=30_000_000)})
    after = meter.event(exchange(), ADMITTED)
    costs = [each.strong_cost(each.decision) for each in (before, after) if each.decision]
    assert costs == [100, 300]
