"""Files that tenants keep: their records. Contents are in the `Storage`, each under its `object`.

A file is made in two steps, so that nothing is ever left over: `begin` records an object that is
about to be written, as one to remove; `complete` makes a file of it. What is never completed is
removed by the sweeper. An upload begins by reserving its bytes, so that a team that has no room
left sends nothing, however many uploads it has on their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.gateway.batch.once import MadeMeanwhile, Once
from sluice.gateway.tenancy.transactions import Connection

Purpose = Literal[
    "batch", "batch_output", "assistants", "evals", "fine-tune", "user_data", "vision"
]

_COLUMNS = (
    "id, team_id, key_id, purpose, filename, bytes, object, lines, endpoint, created_at, expires_at"
)
#: Of files that are there.
LIVE = "deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())"

#: A batch that is not over needs its input.
OPEN = "('validating', 'in_progress', 'finalizing', 'cancelling')"


class OverQuota(Exception):
    """The team would keep more bytes than it may.

    Attributes:
        quota: what it may.
    """

    def __init__(self, quota: int) -> None:
        super().__init__(f"the team may keep {quota} bytes")
        self.quota = quota


class TooMany(Exception):
    """The team has as much on record as it may.

    Attributes:
        what: `files`, `batches`, or `requests` in batches.
        quota: how many it may have.
    """

    def __init__(self, what: Literal["files", "batches", "requests"], quota: int) -> None:
        super().__init__(f"the team may have {quota} {what} on record")
        self.what = what
        self.quota = quota


class ObjectForgotten(LookupError):
    """It took so long to write an object that the sweeper removed it."""


class FileInUse(Exception):
    """A batch that is not over reads the file.

    Attributes:
        batch: its id.
    """

    def __init__(self, batch: UUID) -> None:
        super().__init__("a batch reads the file")
        self.batch = batch


@dataclass(frozen=True, slots=True)
class File:
    """A file's record.

    Attributes:
        key_id: the key it was made with.
        object: where its content is in the storage.
        lines, endpoint: how many requests it holds, and of which operation (a path below `/v1`),
            where its purpose is `batch`.
        expires_at: from when on it is not there any more; None: it is kept.
    """

    id: UUID
    team_id: UUID
    key_id: UUID | None
    purpose: str
    filename: str
    bytes: int
    object: str
    lines: int | None
    endpoint: str | None
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is complete in the storage, and not yet on record.

    Attributes:
        expires_seconds: after which it is gone; None: it is kept.
        once: what its upload is known by, if it may be repeated.
    """

    id: UUID
    team_id: UUID
    key_id: UUID | None
    purpose: Purpose
    filename: str
    bytes: int
    object: str
    lines: int | None = None
    endpoint: str | None = None
    expires_seconds: int | None = None
    once: Once | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """Room for an upload, which the team's quota has already taken into account.

    Attributes:
        id: of the file that it may become.
        object: where to write it.
        bytes: how much of it may come.
        quota: what the team may keep.
    """

    id: UUID
    object: str
    bytes: int
    quota: int


@dataclass(frozen=True, slots=True)
class FileQuery:
    """Which files are listed, and from where on.

    Attributes:
        after: the last one on the page before.
        newest_first: the order, by id.
    """

    limit: int = 10_000
    after: UUID | None = None
    purpose: str | None = None
    newest_first: bool = True


async def begin(connection: Connection, team_id: UUID, reserved: int = 0) -> tuple[UUID, str]:
    """Record that an object is about to be written; give the id of the file that it may become,
    and where to write it.

    Args:
        reserved: bytes that count as kept until it is complete.
    """
    id = uuid_utils.compat.uuid7()
    path = f"{team_id.hex}/{id.hex}"
    await connection.execute(
        "INSERT INTO files (id, team_id, purpose, filename, bytes, object, deleted_at)"
        " VALUES ($1, $2, 'unfinished', '', $4, $3, now())",
        id,
        team_id,
        path,
        reserved,
    )
    return id, path


async def complete(connection: Connection, new: NewFile) -> File:
    """Make a file of an object that was begun, in the caller's transaction.

    Raises:
        ObjectForgotten: see there.
        MadeMeanwhile: see there.
    """
    try:
        row = await connection.fetchrow(
            "UPDATE files SET key_id = $2, purpose = $3, filename = $4, bytes = $5, lines = $6,"
            " endpoint = $7, created_at = now(), deleted_at = NULL,"
            " expires_at = now() + $8::integer * interval '1 second',"
            " once_key = $9, once_content = $10"
            f" WHERE id = $1 AND removed_at IS NULL RETURNING {_COLUMNS}",
            new.id,
            new.key_id,
            new.purpose,
            new.filename,
            new.bytes,
            new.lines,
            new.endpoint,
            new.expires_seconds,
            None if new.once is None else new.once.key,
            None if new.once is None else new.once.content,
        )
    except asyncpg.UniqueViolationError:
        raise MadeMeanwhile from None
    if row is None:
        raise ObjectForgotten("the object was removed before it was complete")
    return File(**row)


_HELD = f"""
SELECT count(*) AS records, coalesce(sum(bytes) FILTER (
    WHERE ({LIVE}) OR (purpose = 'unfinished' AND removed_at IS NULL)), 0)::bigint AS bytes
FROM files WHERE team_id = $1
"""


class Files:
    """Reads and changes the records. Each call sees one team's files."""

    def __init__(self, pool: asyncpg.Pool, quota_bytes: int, quota_files: int) -> None:
        """Args:
        quota_bytes: what one team may keep.
        quota_files: how many files it may have on record, with those that were deleted and that
            a batch's record still names.
        """
        self._pool = pool
        self._quota_bytes = quota_bytes
        self._quota_files = quota_files

    async def reserve(
        self, team_id: UUID, announced: int | None, most: int, quota: int | None
    ) -> Room:
        """Room for an upload.

        Args:
            announced: how many bytes will come; None: nobody knows, and it is what is left.
            most: that an upload may have.
            quota: what the team may keep; None: as everybody.

        Raises:
            OverQuota: there is not so much room.
            TooMany: the team has as many files on record as it may.
        """
        quota = self._quota_bytes if quota is None else quota
        async with self._pool.acquire() as connection, connection.transaction():
            # until the end of the transaction nobody else takes the room
            await connection.execute("SELECT 1 FROM teams WHERE id = $1 FOR NO KEY UPDATE", team_id)
            [held] = await connection.fetch(_HELD, team_id)
            if held["records"] >= self._quota_files:
                raise TooMany("files", self._quota_files)
            left = quota - held["bytes"]
            wanted = max(1, min(most, left)) if announced is None else announced
            if wanted > left:
                raise OverQuota(quota)
            return Room(*await begin(connection, team_id, wanted), wanted, quota)

    async def give_up(self, id: UUID, removed: bool) -> None:
        """Free the room of an upload that came to nothing.

        Args:
            removed: there is certainly no object; otherwise the sweeper will see to it.
        """
        if removed:
            query = "DELETE FROM files WHERE id = $1 AND purpose = 'unfinished'"
        else:
            query = "UPDATE files SET bytes = 0 WHERE id = $1 AND purpose = 'unfinished'"
        await self._pool.execute(query, id)

    async def complete(self, new: NewFile) -> File:
        """See `complete`."""
        async with self._pool.acquire() as connection:
            return await complete(connection, new)

    async def get(self, team_id: UUID, id: UUID) -> File | None:
        """A file of the team's; None: it has no such file, or no more."""
        row = await self._pool.fetchrow(
            f"SELECT {_COLUMNS} FROM files WHERE id = $1 AND team_id = $2 AND {LIVE}", id, team_id
        )
        return None if row is None else File(**row)

    async def made_by(self, team_id: UUID, key: bytes) -> tuple[File, bytes] | None:
        """The file that an upload with a key has made, and what its content was (see `once`);
        None: there was no such upload, or its file was deleted."""
        row = await self._pool.fetchrow(
            f"SELECT {_COLUMNS}, once_content FROM files"
            " WHERE team_id = $1 AND once_key = $2 AND deleted_at IS NULL",
            team_id,
            key,
        )
        if row is None:
            return None
        values = dict(row)
        content: bytes = values.pop("once_content")
        return File(**values), content

    async def list(self, team_id: UUID, query: FileQuery) -> tuple[list[File], bool]:
        """A page of the team's files, and whether there are more behind it."""
        order, beyond = ("DESC", "<") if query.newest_first else ("ASC", ">")
        rows: list[Any] = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM files WHERE team_id = $1 AND {LIVE}"
            f" AND ($2::uuid IS NULL OR id {beyond} $2) AND ($3::text IS NULL OR purpose = $3)"
            f" ORDER BY id {order} LIMIT $4",
            team_id,
            query.after,
            query.purpose,
            query.limit + 1,
        )
        return [File(**row) for row in rows[: query.limit]], len(rows) > query.limit

    async def delete(self, team_id: UUID, id: UUID) -> str | None:
        """Delete a file of the team's; gives its object, which is to be removed (see `removed`), or
        None: there is no such file.

        Raises:
            FileInUse: a batch that is not over reads it.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            object: str | None = await connection.fetchval(
                f"SELECT object FROM files WHERE id = $1 AND team_id = $2 AND {LIVE} FOR UPDATE",
                id,
                team_id,
            )
            if object is None:
                return None
            batch = await connection.fetchval(
                f"SELECT id FROM batches WHERE input_file = $1 AND status IN {OPEN} LIMIT 1", id
            )
            if batch is not None:
                raise FileInUse(batch)
            await connection.execute("UPDATE files SET deleted_at = now() WHERE id = $1", id)
            return object

    async def removed(self, id: UUID) -> None:
        """The object of a deleted file is gone."""
        await self._pool.execute("UPDATE files SET removed_at = now() WHERE id = $1", id)
