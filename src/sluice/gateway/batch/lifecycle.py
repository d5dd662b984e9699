"""The lifecycle: how batches end. Windows close, cancelled ones stop, files are made of results.

Any process may take each step at any time, and several may try at once: every step holds only
where it has not been taken yet.

    in_progress ──all done──> finalizing ──files are there──> completed, or expired where some
         │                                                    items had to be left
         └──> cancelling ──all done or left──files are there──> cancelled
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import structlog

from sluice.gateway.batch import statements
from sluice.gateway.batch.files import NewFile, begin, complete
from sluice.gateway.batch.items import Items
from sluice.gateway.batch.storage import Storage, in_parts

#: What a provider's own batches get to wind up when theirs has ended, in seconds, above what
#: running items get.
_NATIVE_SECONDS = 900.0

_EXPIRED = "This request was not run before the batch's completion window closed."
_CANCELLED = "This request was not run before the batch was cancelled."

_log = structlog.get_logger("sluice.batch")


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Attributes:
    grace_seconds: for items that run when their batch expires or is cancelled.
    output_seconds: for which output files are kept where the batch does not say; None: for ever.
    """

    grace_seconds: float = 60.0
    output_seconds: int | None = 30 * 86_400


class Lifecycle:
    """Ends batches; see the module. Its methods raise asyncpg's errors, OSError and `StorageAway`
    while the database or the object store is away, and may then be called again."""

    def __init__(
        self, pool: asyncpg.Pool, items: Items, storage: Storage, config: LifecycleConfig
    ) -> None:
        self._pool = pool
        self._items = items
        self._storage = storage
        self._config = config

    async def advance(self) -> list[str]:
        """Take every step that is due; the states that batches came to."""
        for row in await self._pool.fetch(statements.CLOSING_BATCHES):
            await self._close(row)
        await self._pool.execute(statements.COMPLETE_BATCHES)
        ended = []
        for row in await self._pool.fetch(statements.FINALIZING_BATCHES):
            state = await self._finalize(row["id"])
            if state is not None:
                ended.append(state)
                _log.info("batch ended", batch=str(row["id"]), state=state)
        return ended

    async def _close(self, batch: asyncpg.Record) -> None:
        """End the items that will not run any more: what waits at once, what runs after a grace."""
        code, message = ("batch_cancelled", _CANCELLED)
        if batch["status"] == "in_progress":
            code, message = ("batch_expired", _EXPIRED)
        states = ["pending"]
        if batch["seconds"] > self._config.grace_seconds:
            states.append("running")
        if batch["seconds"] > self._config.grace_seconds + _NATIVE_SECONDS:
            states.append("native")
        while await self._items.close(batch["id"], code, message, states):
            if batch["status"] == "in_progress":
                await self._pool.execute(statements.NOTE_EXPIRED, batch["id"])

    async def _finalize(self, batch_id: UUID) -> str | None:
        """Make files of a batch's results and end it; None: somebody else does, or has."""
        async with self._pool.acquire() as connection:
            if not await connection.fetchval(statements.TAKE_FINALIZING, str(batch_id)):
                return None
            row = await connection.fetchrow(statements.FINALIZED_BATCH, batch_id)
            if row is None:
                return None
            output = await self._file(row, ok=True)
            errors = await self._file(row, ok=False)
            async with connection.transaction():
                state: str | None = await connection.fetchval(
                    statements.END_BATCH,
                    batch_id,
                    None if output is None else output.id,
                    None if errors is None else errors.id,
                )
                for file in (output, errors):
                    if file is not None and state is not None:
                        await complete(connection, file)
            return state

    async def _file(self, batch: asyncpg.Record, *, ok: bool) -> NewFile | None:
        """Write the file of a kind of results; None where there are none."""
        count = batch["completed"] if ok else batch["failed"]
        if not count:
            return None
        async with self._pool.acquire() as connection:
            id, path = await begin(connection, batch["team_id"])
        written = _Counted(self._lines(batch["id"], ok))
        await self._storage.write(path, in_parts(written.chunks()))
        seconds = batch["output_seconds"]
        return NewFile(
            id=id,
            team_id=batch["team_id"],
            key_id=batch["key_id"],
            purpose="batch_output",
            filename=f"batch_{batch['id'].hex}_{'output' if ok else 'error'}.jsonl",
            bytes=written.size,
            object=path,
            lines=count,
            endpoint=batch["endpoint"],
            expires_seconds=self._config.output_seconds if seconds is None else seconds,
        )

    async def _lines(self, batch_id: UUID, ok: bool) -> AsyncIterator[bytes]:
        after = 0
        while rows := await self._pool.fetch(statements.RESULTS, batch_id, ok, after):
            yield b"".join([row["result"].encode() + b"\n" for row in rows])
            after = rows[-1]["sequence"]


class _Counted:
    """Chunks, and how many bytes they were.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.size = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks, as they are."""
        async for chunk in self._chunks:
            self.size += len(chunk)
            yield chunk
