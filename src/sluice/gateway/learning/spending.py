"""What comparisons may cost: one budget a day (UTC) for all gateways together, kept in Postgres."""

from __future__ import annotations

import asyncpg

_RESERVE = """
INSERT INTO comparison_spend AS known (day, cost_nano_usd)
SELECT (now() AT TIME ZONE 'UTC')::date, $1::bigint WHERE $1::bigint <= $2::bigint
ON CONFLICT (day) DO UPDATE SET cost_nano_usd = known.cost_nano_usd + excluded.cost_nano_usd
    WHERE known.cost_nano_usd + excluded.cost_nano_usd <= $2
RETURNING day
"""

_SETTLE = """
UPDATE comparison_spend SET cost_nano_usd = greatest(0, cost_nano_usd + $2) WHERE day = $1
"""


class DailyBudget:
    """Reserves before a comparison what it may cost at most, and settles what it did."""

    def __init__(self, pool: asyncpg.Pool, limit_nano_usd: int) -> None:
        """Args:
        pool: the database.
        limit_nano_usd: of a day.
        """
        self._pool = pool
        self._limit = limit_nano_usd

    async def reserve(self, most: int) -> Held | None:
        """Set aside so many nano-USD; None: the day's budget has not got them."""
        day = await self._pool.fetchval(_RESERVE, most, self._limit)
        return None if day is None else Held(self._pool, day, most)


class Held:
    """What was set aside. A gateway that dies with it leaves the day that much poorer."""

    def __init__(self, pool: asyncpg.Pool, day: object, most: int) -> None:
        self._pool = pool
        self._day = day
        self._most = most

    async def settle(self, cost: int) -> None:
        """Give back what was not needed."""
        await self._pool.execute(_SETTLE, self._day, cost - self._most)
