"""What is known in Postgres of batches at providers.

Each record is one process's at a time: whoever claims it moves `next_at` on, and if that process
ends, another one goes on from what the record says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.backends.base import Endpoint
from sluice.gateway.batch import statements

#: For how long a record is left to the process that claimed it. Longer than handing over a batch,
#: or writing down its results, can take.
LEASE = timedelta(minutes=15)

#: Most items of one batch at a provider, and most bytes of input that they span.
MAX_ITEMS = 10_000
MAX_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch of which it is open what goes natively.

    Attributes:
        total: its items.
    """

    id: UUID
    model: str
    endpoint: Endpoint
    total: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """A batch at a provider, with what matters of ours.

    Attributes:
        credential: label of the provider's key that it was made with.
        upstream_id: the provider's id of it; None: it may not be there yet.
        cancelling_at: when the provider was asked for its end.
        endpoint, team_id, key_id, status, expires_at, object: of our batch.
    """

    id: UUID
    batch_id: UUID
    provider: str
    model: str
    deployment: str
    credential: str
    state: Literal["submitting", "submitted"]
    upstream_id: str | None
    created_at: datetime
    cancelling_at: datetime | None
    endpoint: Endpoint
    team_id: UUID
    key_id: UUID
    status: str
    expires_at: datetime
    object: str


@dataclass(frozen=True, slots=True)
class NativeItem:
    """An item of a batch at a provider: its line in our input, and the line's range."""

    line: int
    custom_id: str
    offset: int
    length: int


_UNDECIDED = """
SELECT id, model, endpoint, total, expires_at FROM batches
WHERE status = 'in_progress' AND NOT live AND model = ANY ($1) ORDER BY id LIMIT 1000
"""

_PENDING = """
SELECT item.line, item.byte_offset, item.byte_length
FROM batch_items item JOIN batches batch ON batch.id = item.batch_id
WHERE item.batch_id = $1 AND item.state = 'pending'
    AND batch.status = 'in_progress' AND NOT batch.live
ORDER BY item.line LIMIT $2 FOR UPDATE OF item SKIP LOCKED
"""

_TAKE = """
UPDATE batch_items SET state = 'native', native_batch = $2
WHERE batch_id = $1 AND line = ANY ($3::integer[])
"""

_INSERT = """
INSERT INTO native_batches (id, batch_id, provider, model, deployment, credential, items, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8)
"""

_WHOLE = """
SELECT native.id, native.batch_id, native.provider, native.model, native.deployment,
    native.credential, native.state, native.upstream_id, native.created_at, native.cancelling_at,
    batch.endpoint, batch.team_id, batch.key_id, batch.status, batch.expires_at, file.object
FROM native_batches native JOIN batches batch ON batch.id = native.batch_id
    JOIN files file ON file.id = batch.input_file
WHERE native.id = $1
"""

_CLAIM = """
UPDATE native_batches SET next_at = now() + $1 WHERE id = (
    SELECT id FROM native_batches WHERE state <> 'done' AND next_at <= now()
    ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id
"""

_ITEMS = """
SELECT line, custom_id, byte_offset AS "offset", byte_length AS length FROM batch_items
WHERE native_batch = $1 AND state = 'native' ORDER BY line
"""

_GIVE_BACK = """
UPDATE batch_items SET state = 'pending', native_batch = NULL, attempts = attempts + $3
WHERE native_batch = $1 AND state = 'native' AND ($2::integer[] IS NULL OR line = ANY ($2))
"""


_PROMISE = "UPDATE native_batches SET need_nano_usd = $2 WHERE id = $1"

_PROMISED = """
SELECT sum(native.need_nano_usd)::bigint AS organisation,
    sum(native.need_nano_usd) FILTER (WHERE team.id = $1)::bigint AS team,
    sum(native.need_nano_usd) FILTER (WHERE batch.key_id = $2)::bigint AS key
FROM native_batches native JOIN batches batch ON batch.id = native.batch_id
    JOIN teams team ON team.id = batch.team_id
WHERE native.state <> 'done'
    AND team.organisation_id = (SELECT organisation_id FROM teams WHERE id = $1)
"""


class NativeRecords:
    """See the module. Every method raises asyncpg's errors and OSError while the database is
    away."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def undecided(self, models: Sequence[str]) -> list[Candidate]:
        """Batches of some models of which it is open what goes natively."""
        rows = await self._pool.fetch(_UNDECIDED, list(models))
        return [Candidate(**{**row, "endpoint": Endpoint(row["endpoint"])}) for row in rows]

    async def decided(self, batch_id: UUID) -> None:
        """What is pending of a batch may be called live from now on."""
        await self._pool.execute("UPDATE batches SET live = true WHERE id = $1", batch_id)

    async def take(
        self, batch_id: UUID, model: str, deployment: str, credential: str
    ) -> NativeBatch | None:
        """Make a batch for a provider of the next pending items; None: there are none.

        Args:
            deployment: `provider/upstream model`.
            credential: label of the key that it is going to be made with.
        """
        native_id = uuid_utils.compat.uuid7()
        async with self._pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(_PENDING, batch_id, MAX_ITEMS)
            lines = _within_bytes(rows)
            if not lines:
                return None
            provider = deployment.partition("/")[0]
            values = (native_id, batch_id, provider, model, deployment, credential, len(lines))
            await connection.execute(_INSERT, *values, LEASE)
            await connection.execute(_TAKE, batch_id, native_id, lines)
            return _native(await connection.fetchrow(_WHOLE, native_id))

    async def claim(self) -> NativeBatch | None:
        """The next record that is to be looked at; None: none is due."""
        native_id = await self._pool.fetchval(_CLAIM, LEASE)
        if native_id is None:
            return None
        row = await self._pool.fetchrow(_WHOLE, native_id)
        return None if row is None else _native(row)

    async def items(self, native_id: UUID) -> list[NativeItem]:
        """The items that are still with the provider, in the order of their lines."""
        return [NativeItem(**row) for row in await self._pool.fetch(_ITEMS, native_id)]

    async def known(self, provider: str) -> list[str]:
        """The provider's ids of all our batches there."""
        rows = await self._pool.fetch(
            "SELECT upstream_id FROM native_batches"
            " WHERE provider = $1 AND upstream_id IS NOT NULL",
            provider,
        )
        return [row["upstream_id"] for row in rows]

    async def promise(self, native: NativeBatch, nano_usd: int) -> Mapping[str, int]:
        """Note what a batch may cost. Of two that do so at once, one at least sees the other.

        Returns:
            What it and all others that are open may cost: of its `organisation`, `team` and `key`.
        """
        await self._pool.execute(_PROMISE, native.id, nano_usd)
        [row] = await self._pool.fetch(_PROMISED, native.team_id, native.key_id)
        return dict(row.items())

    async def submitted(self, native_id: UUID, upstream_id: str, seconds: float) -> None:
        """The provider has it; look at it in so many seconds."""
        await self._pool.execute(
            "UPDATE native_batches SET state = 'submitted', upstream_id = $2, next_at = now() + $3"
            " WHERE id = $1",
            native_id,
            upstream_id,
            timedelta(seconds=seconds),
        )

    async def look_again(self, native_id: UUID, seconds: float, cancelling: bool = False) -> None:
        """Look at it in so many seconds.

        Args:
            cancelling: the provider was asked for its end.
        """
        await self._pool.execute(
            "UPDATE native_batches SET next_at = now() + $2, cancelling_at ="
            " CASE WHEN $3 THEN coalesce(cancelling_at, now()) ELSE cancelling_at END"
            " WHERE id = $1",
            native_id,
            timedelta(seconds=seconds),
            cancelling,
        )

    async def give_back(
        self, native: NativeBatch, lines: Sequence[int] | None = None, attempts: int = 0
    ) -> int:
        """Items go back to those that are pending.

        Args:
            lines: which; None: all that are still with the provider.
            attempts: that this counts for.

        Returns:
            How many there were.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetch(statements.LOCK_BATCHES, [native.batch_id])
            given = None if lines is None else list(lines)
            status: str = await connection.execute(_GIVE_BACK, native.id, given, attempts)
        return int(status.rpartition(" ")[2])

    async def done(self, native_id: UUID, error: str | None = None) -> None:
        """It is over, and none of its items is with the provider any more.

        Args:
            error: why it came to nothing.
        """
        await self._pool.execute(
            "UPDATE native_batches SET state = 'done', error = $2 WHERE id = $1", native_id, error
        )


def _native(row: Any) -> NativeBatch:
    return NativeBatch(**{**row, "endpoint": Endpoint(row["endpoint"])})


def _within_bytes(rows: Sequence[Any]) -> list[int]:
    """The first lines that span no more of the input than may be held at a time; at least one."""
    first = rows[0]["byte_offset"] if rows else 0
    return [
        row["line"]
        for number, row in enumerate(rows)
        if number == 0 or row["byte_offset"] + row["byte_length"] - first <= MAX_BYTES
    ]
