"""The sweeper: ends the life of files that have expired, removes contents that no file has any
more, and forgets batches that ended long ago.

Every gateway has one. What several do at once is done once: rows that one of them works on are
skipped by the others, and removing an object twice is harmless.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.background import Background
from sluice.gateway.batch.files import OPEN
from sluice.gateway.batch.storage import Storage, StorageAway

#: Between two looks, in seconds.
PERIOD_SECONDS = 60.0

#: An object whose file was deleted stays for so long: a download may be on its way, or an upload
#: that is recorded as deleted until it is complete.
GRACE = timedelta(hours=2)

_LOT = 100

# A minute late: whoever found a file alive and makes a batch of it is done with that by then.
_EXPIRE = f"""
UPDATE files SET deleted_at = now() WHERE id IN (
    SELECT id FROM files AS file WHERE deleted_at IS NULL
        AND expires_at <= now() - interval '1 minute'
        AND NOT EXISTS (SELECT 1 FROM batches WHERE input_file = file.id AND status IN {OPEN})
    LIMIT $1 FOR UPDATE SKIP LOCKED
)
"""

_TO_REMOVE = """
SELECT id, object FROM files WHERE deleted_at < now() - $2::interval AND removed_at IS NULL
LIMIT $1 FOR UPDATE SKIP LOCKED
"""

_FORGET_BATCHES = """
DELETE FROM batches WHERE id IN (
    SELECT id FROM batches
    WHERE coalesce(completed_at, failed_at, expired_at, cancelled_at) < now() - $2::interval
        AND status IN ('completed', 'failed', 'expired', 'cancelled')
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)
"""

_FORGET_FILES = """
DELETE FROM files WHERE id IN (
    SELECT id FROM files AS file WHERE removed_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM batches WHERE input_file = file.id)
        AND NOT EXISTS (SELECT 1 FROM batches WHERE output_file = file.id)
        AND NOT EXISTS (SELECT 1 FROM batches WHERE error_file = file.id)
    LIMIT $1 FOR UPDATE SKIP LOCKED
)
"""

_log = structlog.get_logger("sluice.files")


class FileSweeper(Background):
    """See the module."""

    name = "file-sweeper"

    def __init__(
        self,
        pool: asyncpg.Pool,
        storage: Storage,
        keep_batches: timedelta,
        grace: timedelta = GRACE,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """Args:
        keep_batches: how long the record of a batch and its results stay after its end.
        grace: see `GRACE`.
        """
        super().__init__()
        self._pool = pool
        self._storage = storage
        self._keep_batches = keep_batches
        self._grace = grace
        self._period_seconds = period_seconds

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                await self.sweep()
            except (StorageAway, *DATABASE_ERRORS) as error:  # what is left is found again
                _log.warning("files not swept", error=type(error).__name__)

    async def sweep(self) -> None:
        """Look once, and do all that is due.

        Raises:
            StorageAway, asyncpg.PostgresError, OSError: one of both is away.
        """
        await self._repeat(_EXPIRE, _LOT)
        while await self._remove_objects() == _LOT:
            pass
        # one at a time, each of which may have 50,000 items
        await self._repeat(_FORGET_BATCHES, 1, self._keep_batches)
        await self._repeat(_FORGET_FILES, _LOT)

    async def _repeat(self, query: str, lot: int, *values: object) -> None:
        """Change rows, a lot at a time, until there are no more."""
        while (await self._pool.execute(query, lot, *values)).endswith(f" {lot}"):
            pass

    async def _remove_objects(self) -> int:
        """Remove a lot, and give how many there were."""
        async with self._pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(_TO_REMOVE, _LOT, self._grace)
            for row in rows:
                await self._storage.delete(row["object"])
            await connection.execute(
                "UPDATE files SET removed_at = now() WHERE id = ANY($1)",
                [row["id"] for row in rows],
            )
        if rows:
            _log.info("file contents removed", count=len(rows))
        return len(rows)
