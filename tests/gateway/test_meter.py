"""What an exchange is charged, and what `auto` saved by it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.gateway.auth import Principal
from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.meter import Meter
from sluice.gateway.output_rates import OutputRates
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


@pytest.mark.parametrize(("tier", "cost", "strong"), [("interactive", 10, 100), ("batch", 5, 50)])
async def test_a_saving_is_of_prices_of_the_same_tier(tier: Tier, cost: int, strong: int) -> None:
    admitted = Admitted(Principal("o", "t", "team", "k"), SMALL, request("hello"), tier)
    event = Meter(PRICES, "gateway", OutputRates()).event(exchange(), admitted)
    assert event.decision is not None
    assert (event.cost_nano_usd, event.decision.strong_cost_nano_usd) == (cost, strong)
