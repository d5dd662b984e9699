"""Batches: their records, made, read and cancelled. What runs them is the engine's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.batch import statements
from sluice.gateway.batch.files import LIVE, File, NewFile, TooMany, complete
from sluice.gateway.batch.lines import InputLine
from sluice.gateway.batch.once import MadeMeanwhile, Once
from sluice.gateway.tenancy.limits import Priority
from sluice.gateway.tenancy.transactions import Connection

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]

#: The states that no batch leaves.
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})

#: Seconds for the statement that brings in the items of a batch.
_COPY_SECONDS = 60.0

#: Rows that are made without a pause.
_ROWS_A_TURN = 200

#: How often it is looked for more results of a batch that runs, in seconds.
FOLLOW_SECONDS = 0.5


class InputGone(Exception):
    """The input file was deleted, or expired, while the batch was made of it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's record. Members are those of OpenAI's object, and what it cost.

    Attributes:
        key_id: the key that it was made with, and that its requests are charged to.
        endpoint: a path below `/v1`.
        output_expires: how long its output files are kept.
        callback: the URL that is told of its end, and how that went; None: nobody is told.
        errors: why it failed, as entries of `errors.data`.
        cached_tokens: of the input tokens.
        expires_at: when its window closes.
    """

    id: UUID
    team_id: UUID
    key_id: UUID
    endpoint: str
    model: str
    input_file: UUID
    output_file: UUID | None
    error_file: UUID | None
    status: Status
    priority: Priority
    completion_window: timedelta
    output_expires: timedelta | None
    metadata: dict[str, str] | None
    callback: dict[str, Any] | None
    errors: list[dict[str, Any]] | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_nano_usd: int
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What is asked for with a batch.

    Attributes:
        output_expires_seconds: None: as long as the configuration says.
        callback_url: is told of the end.
        once: what the call is known by, if it may be repeated.
    """

    team_id: UUID
    key_id: UUID
    endpoint: str
    model: str
    completion_window: timedelta
    priority: Priority = "normal"
    output_expires_seconds: int | None = None
    metadata: dict[str, str] | None = None
    callback_url: str | None = None
    once: Once | None = None


@dataclass(frozen=True, slots=True)
class BatchQuota:
    """What one team may have on record, however its batches ended: their records and results stay
    for a while, and nobody's calls take them away.

    Attributes:
        batches: how many.
        requests: in all of them.
    """

    batches: int
    requests: int


@dataclass(frozen=True, slots=True)
class ResultLine:
    """What came of an item: a line of the output file or the error file, and its number in the
    order in which results came."""

    sequence: int
    line: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How the batches of all teams are doing.

    Attributes:
        waiting: requests that are not done.
        rate: requests a second that a batch was done with of late; None: none was.
    """

    waiting: int
    rate: float | None


_PACE = """
SELECT
    (SELECT coalesce(sum(total - completed - failed), 0)::bigint FROM batches
        WHERE status = 'in_progress') AS waiting,
    (SELECT (sum(completed + failed)
            / nullif(sum(extract(epoch FROM completed_at - in_progress_at)), 0))::float8
        FROM (SELECT * FROM batches WHERE status = 'completed' ORDER BY id DESC LIMIT 20) AS recent
    ) AS rate
"""

_JSON = ("metadata", "callback", "errors")
_COLUMNS = ", ".join(field.name for field in fields(Batch))
_ITEM_COLUMNS = (
    *("batch_id", "line", "custom_id", "model", "byte_offset", "byte_length", "request_id"),
)


class Batches:
    """Makes, reads and cancels batches. Each call sees one team's batches."""

    def __init__(self, pool: asyncpg.Pool, quota: BatchQuota) -> None:
        self._pool = pool
        self._quota = quota

    async def check_room(self, team_id: UUID, requests: int = 1) -> None:
        """See whether a team may have one more batch. Batches that are made at the same time don't
        see each other.

        Args:
            team_id: whose.
            requests: in the new one, as far as is known.

        Raises:
            TooMany: see there.
        """
        [held] = await self._pool.fetch(
            "SELECT count(*) AS batches, coalesce(sum(total), 0)::bigint AS requests FROM batches"
            " WHERE team_id = $1",
            team_id,
        )
        if held["batches"] >= self._quota.batches:
            raise TooMany("batches", self._quota.batches)
        if held["requests"] + requests > self._quota.requests:
            raise TooMany("requests", self._quota.requests)

    async def create(self, new: NewBatch, items: Sequence[InputLine], input_file: File) -> Batch:
        """Make a batch of a file, with all its items or not at all.

        Raises:
            InputGone: the file is there no more.
            MadeMeanwhile: see there.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            there = await connection.fetchval(
                f"SELECT 1 FROM files WHERE id = $1 AND {LIVE} FOR SHARE", input_file.id
            )
            if there is None:
                raise InputGone
            return await _insert(connection, new, items, input_file.id)

    async def submit(self, new: NewBatch, items: Sequence[InputLine], upload: NewFile) -> Batch:
        """Make a batch and its input file of an object that was begun (see `files`), both or
        neither.

        Raises:
            ObjectForgotten: see `files.complete`.
            MadeMeanwhile: see there.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await complete(connection, upload)
            return await _insert(connection, new, items, upload.id)

    async def get(self, team_id: UUID, id: UUID) -> Batch | None:
        """A batch of the team's; None: it has no such batch."""
        row = await self._pool.fetchrow(
            f"SELECT {_COLUMNS} FROM batches WHERE id = $1 AND team_id = $2", id, team_id
        )
        return None if row is None else _batch(row)

    async def made_by(self, team_id: UUID, key: bytes) -> tuple[Batch, bytes] | None:
        """The batch that a call with a key has made, and what its content was (see `once`); None:
        there was no such call."""
        row = await self._pool.fetchrow(
            f"SELECT {_COLUMNS}, once_content FROM batches WHERE team_id = $1 AND once_key = $2",
            team_id,
            key,
        )
        if row is None:
            return None
        values = dict(row)
        content: bytes = values.pop("once_content")
        return _batch(values), content

    async def list(self, team_id: UUID, limit: int, after: UUID | None) -> tuple[list[Batch], bool]:
        """A page of the team's batches, newest first, and whether there are more behind it.

        Args:
            after: the last one on the page before.
        """
        rows: list[Any] = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM batches WHERE team_id = $1 AND ($2::uuid IS NULL OR id < $2)"
            " ORDER BY id DESC LIMIT $3",
            team_id,
            after,
            limit + 1,
        )
        return [_batch(row) for row in rows[:limit]], len(rows) > limit

    async def cancel(self, team_id: UUID, id: UUID) -> Batch | None:
        """Ask a batch to end: what runs may finish, what waits does not begin. A batch that has
        ended, or is about to, stays as it is. None: the team has no such batch."""
        await self._pool.execute(
            "UPDATE batches SET status = 'cancelling', cancelling_at = now() WHERE id = $1"
            " AND team_id = $2 AND status IN ('validating', 'in_progress')",
            id,
            team_id,
        )
        return await self.get(team_id, id)

    async def pace(self) -> Pace:
        """How the batches of all teams are doing."""
        [row] = await self._pool.fetch(_PACE)
        return Pace(row["waiting"], row["rate"])

    async def results(self, batch: Batch, ok: bool, after: int) -> AsyncIterator[ResultLine]:
        """What came of the items of a batch so far, in the order in which it came.

        Args:
            ok: lines of the output file, else of the error file.
            after: the sequence of the last result that is known; 0: from the beginning.
        """
        while rows := await self._pool.fetch(statements.RESULTS, batch.id, ok, after):
            for row in rows:
                yield ResultLine(row["sequence"], row["result"])
            after = rows[-1]["sequence"]

    async def follow(
        self, batch: Batch, ok: bool, after: int, poll_seconds: float = FOLLOW_SECONDS
    ) -> AsyncIterator[ResultLine]:
        """The same, and then what comes, until the batch has ended."""
        ended = False
        while True:
            async for line in self.results(batch, ok, after):
                after = line.sequence
                yield line
            if ended:
                return
            now = await self.get(batch.team_id, batch.id)
            ended = now is None or now.status in ENDED
            if not ended:
                await asyncio.sleep(poll_seconds)


async def _insert(
    connection: Connection, new: NewBatch, items: Sequence[InputLine], input_file: UUID
) -> Batch:
    id = uuid_utils.compat.uuid7()
    row = await connection.fetchrow(
        "INSERT INTO batches (id, team_id, key_id, endpoint, model, input_file, status, priority,"
        " completion_window, output_expires, metadata, callback, total, once_key, once_content,"
        " expires_at, in_progress_at) VALUES ($1, $2, $3, $4, $5, $6, 'in_progress', $7, $8, $9,"
        " $10, $11, $12, $13, $14, now() + $8, now())"
        " ON CONFLICT (team_id, once_key) WHERE once_key IS NOT NULL DO NOTHING"
        f" RETURNING {_COLUMNS}",
        id,
        new.team_id,
        new.key_id,
        new.endpoint,
        new.model,
        input_file,
        new.priority,
        new.completion_window,
        None
        if new.output_expires_seconds is None
        else timedelta(seconds=new.output_expires_seconds),
        _json(new.metadata),
        _json(None if new.callback_url is None else {"url": new.callback_url}),
        len(items),
        None if new.once is None else new.once.key,
        None if new.once is None else new.once.content,
    )
    if row is None:
        raise MadeMeanwhile
    await connection.copy_records_to_table(
        "batch_items",
        columns=_ITEM_COLUMNS,
        records=_records(id, new.model, items),
        timeout=_COPY_SECONDS,
    )
    return _batch(row)


async def _records(
    id: UUID, model: str, items: Sequence[InputLine]
) -> AsyncIterator[tuple[Any, ...]]:
    """Rows of items; others have their turn between them."""
    for start in range(0, len(items), _ROWS_A_TURN):
        await asyncio.sleep(0)
        for item in items[start : start + _ROWS_A_TURN]:
            request_id = uuid_utils.compat.uuid7()
            yield (id, item.line, item.custom_id, model, item.offset, item.length, request_id)


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _batch(row: asyncpg.Record | dict[str, Any]) -> Batch:
    values: dict[str, Any] = dict(row)
    for name in _JSON:
        if values[name] is not None:
            values[name] = msgspec.json.decode(values[name])
    return Batch(**values)
