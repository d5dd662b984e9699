"""Routed requests and what is known of them, in a database."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.billing.ledger import Ledger
from sluice.router.complexity.features import BUCKETS, extract
from sluice.router.complexity.model import Model, pack
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView
from tests.billing.samples import KEY, TEAM, usage_event

ALIAS = "auto"


async def record(pool: asyncpg.Pool, request_id: UUID | None = None, **changes: Any) -> UUID:
    """A usage record of now; its request's id."""
    made = request_id or uuid_utils.compat.uuid7()
    now = int(datetime.now(UTC).timestamp() * 1e6)
    event = usage_event(request_id=str(made), **{"time_us": now, **changes})
    await Ledger(pool).store([event])
    return made


FEATURES = extract(RequestView("", 0))

_COLUMNS: dict[str, Any] = {
    "team_id": TEAM,
    "key_id": KEY,
    "alias": ALIAS,
    "mode": "score",
    "tier": "weak",
    "model": "small",
    "model_used": "small",
    "tier_used": "weak",
    "score": 0.5,
    "threshold": None,
    "reasons": [],
    "scorer": "rule",
    "features": FEATURES,
    "needs": [],
    "tokens": 10,
    "conversation": b"c",
    "strong_model": "large",
    "strong_cost_nano_usd": 0,
}

STRONG: dict[str, Any] = {"model_used": "large", "tier_used": "strong"}


async def decided(pool: asyncpg.Pool, ago: float = 0.0, **changes: Any) -> UUID:
    """A decision of so many seconds ago; its request's id."""
    time = datetime.now(UTC) - timedelta(seconds=ago)
    made = uuid_utils.compat.uuid7()
    values = {"request_id": made, "time": time, **_COLUMNS, **changes}
    day = time.date()
    await pool.execute(
        f"CREATE TABLE IF NOT EXISTS route_decisions_{day:%Y%m%d} PARTITION OF route_decisions"
        f" FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
    )
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await pool.execute(
        f"INSERT INTO route_decisions ({', '.join(values)}) VALUES ({places})", *values.values()
    )
    await pool.execute(
        "INSERT INTO routing_daily VALUES ($1, $2, $3, $4, $5, 1, 0, 0) ON CONFLICT DO NOTHING",
        day,
        *(values[name] for name in ("team_id", "alias", "tier_used", "model_used")),
    )
    return made


def model_file(bias: float = 0.0, table: array[float] | None = None) -> bytes:
    """A model to which every request is the same, but for a table that is given."""
    nothing = (0.0,) * len(SIGNALS)
    return pack(
        Model(
            bias=bias,
            signals=nothing,
            usual=nothing,
            usual_wording=0.0,
            centre=0.0,
            scale=1.0,
            quantiles=tuple(number / 100 for number in range(101)),
            table=table or array("f", bytes(4 * BUCKETS)),
        )
    )
