"""What a preview reckons with, without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any
from uuid import UUID

from sluice.billing.prices import Price
from sluice.gateway.routing.preview import Previews
from sluice.router.auto.scorers import Scorers
from sluice.router.catalog import Catalog, Model
from tests.router.auto.samples import document, model


def row(served_as: str) -> dict[str, Any]:
    return {
        "time": datetime(2026, 3, 5, tzinfo=UTC),
        "team_id": UUID(int=1),
        "model_used": "large",
        "deployment": "p/large-0",
        "served_as": served_as,
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 10,
        "cost_nano_usd": 7,
        "tier_used": "quality",
        "mode": "economy",
        "score": 0.5,
        "scorer": "rule",
        "features": b"",
        "needs": ["chat"],
        "tokens": 10,
        "conversation": b"c" * 16,
    }


class Rows:
    """A pool whose every query finds these."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)

    async def fetch(self, *_: Any) -> list[dict[str, Any]]:
        return self.rows


def open_to_all(name: str) -> Model:
    made = model(name)
    tiers: Any = frozenset({"interactive", "batch"})
    return Model(made.name, made.context_length, made.capabilities, tiers, made.deployments)


async def test_requests_of_the_batch_tier_would_have_had_its_prices() -> None:
    pool: Any = Rows(row("interactive"), row("batch"))
    catalog = Catalog([open_to_all("small"), open_to_all("large")], created=5)
    prices = {"small": Price(output=1_000_000, batch_share=Fraction(1, 2))}
    found = await Previews(pool, catalog, prices, Scorers()).of("auto", None, document())
    assert [(each.model, each.requests) for each in found.would] == [("small", 2)]
    assert found.would_cost_nano_usd == 10 + 5
