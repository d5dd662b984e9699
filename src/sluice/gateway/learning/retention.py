"""Retention: why requests went where they went, and what is known of their answers, is kept for so
long and no longer. Sums by day are not touched: what `auto` saved stays in the usage reports.

Every gateway looks; what several do at once is done once, or twice without harm.
"""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta

import asyncpg
import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.background import Background

#: Between two looks, in seconds.
PERIOD_SECONDS = 3600.0

# A partition is a UTC day's. One that was emptied has no size until something comes late.
_FULL_DAYS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'route_decisions'::regclass AND pg_relation_size(c.oid) > 0
    AND c.relname ~ '_[0-9]{8}$'
ORDER BY c.relname
"""

_log = structlog.get_logger("sluice.router")


class RouteSweeper(Background):
    """See the module."""

    name = "route-sweeper"

    def __init__(
        self, pool: asyncpg.Pool, keep: timedelta, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        """Args:
        pool: the database.
        keep: for how long.
        period_seconds: between two looks.
        """
        super().__init__()
        self._pool = pool
        self._keep = keep
        self._period_seconds = period_seconds

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except DATABASE_ERRORS as error:  # what is left is found again
                _log.warning("routing records not swept", error=type(error).__name__)
            await asyncio.sleep(self._period_seconds)

    async def sweep(self) -> None:
        """Look once. A day's decisions go together when the last of them is old enough.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        before: datetime = await self._pool.fetchval("SELECT now() - $1::interval", self._keep)
        await self._pool.execute("DELETE FROM route_labels WHERE time < $1", before)
        await self._pool.execute("DELETE FROM comparison_spend WHERE day < $1::timestamptz", before)
        for row in await self._pool.fetch(_FULL_DAYS):
            name: str = row["relname"]
            if _day(name) < before.date():
                await self._empty(name)

    async def _empty(self, partition: str) -> None:
        """Whoever reads it is not waited for long, since others would have to wait behind. The
        partition itself stays: the ledger counts on those that it has made."""
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '1s'")
                await connection.execute(f"TRUNCATE {partition}")
        except asyncpg.LockNotAvailableError:
            _log.info("routing decisions are being read, and stay for now", partition=partition)
        else:
            _log.info("routing decisions removed", partition=partition)


def _day(partition: str) -> date:
    return datetime.strptime(partition[-8:], "%Y%m%d").date()
