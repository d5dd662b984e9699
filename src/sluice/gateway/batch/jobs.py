"""Jobs: the open batches as those see them who share their items out."""

from __future__ import annotations

import asyncpg

from sluice.gateway.batch import statements
from sluice.gateway.batch.sharing import Job


class Jobs:
    """Reads them from Postgres."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def open(self) -> list[Job]:
        """The open batches, each team's first ones by when their windows close; a thousand at most.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        rows = await self._pool.fetch(statements.OPEN_BATCHES)
        return [Job(**dict(row.items())) for row in rows]
