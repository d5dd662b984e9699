"""Model versions in Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.registry.stages import Move, Promotion, promote, retire
from sluice.gateway.registry.versions import STAGES, ModelVersion, NewVersion, Terms
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.records import Members, merged
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.transactions import Connection, change

By = TypeVar("By")
By_contra = TypeVar("By_contra", contravariant=True)

_JSON = ("manifest", "parallelism", "engine", "sampling", "price")
_TERMS = ("sampling", "price", "tiers", "default_max_tokens")


class Journal(Protocol[By_contra]):
    """Notes a change, in its transaction."""

    async def __call__(
        self,
        connection: Connection,
        by: By_contra,
        verb: str,
        before: ModelVersion | None,
        after: ModelVersion,
    ) -> None: ...


class Registry(Generic[By]):
    """Reads and changes model versions."""

    def __init__(self, pool: asyncpg.Pool, journal: Journal[By]) -> None:
        """Args:
        pool: the database.
        journal: is told of every change, with who makes it.
        """
        self._pool = pool
        self._journal = journal

    async def create(self, new: NewVersion, by: By) -> ModelVersion:
        """Register a version. It is in no stage.

        Raises:
            Conflict: the model has a version of this name.
        """
        columns = {name: _column(getattr(new, name), name) for name in NewVersion.__struct_fields__}
        places = ", ".join(f"${number}" for number in range(2, len(columns) + 2))
        async with change(self._pool) as connection:
            try:
                [row] = await connection.fetch(
                    f"INSERT INTO model_versions (id, {', '.join(columns)})"
                    f" VALUES ($1, {places}) RETURNING *",
                    uuid_utils.compat.uuid7(),
                    *columns.values(),
                )
            except asyncpg.UniqueViolationError:
                raise Conflict(
                    f"the model `{new.name}` has a version `{new.version}`", "version"
                ) from None
            made = _version(row)
            await self._journal(connection, by, "create", None, made)
        return made

    async def find(self, name: str, version: str) -> ModelVersion:
        """A version by its name, or by the stage that it is in.

        Raises:
            Missing: there is none.
        """
        return await _find(self._pool, name, version)

    async def page(self, name: str | None, turn: Turn) -> Page[ModelVersion]:
        """Versions, oldest first: of one model, or of all."""
        if name is not None and "\0" in name:
            return turn.page([], _version)
        rows = await self._pool.fetch(
            "SELECT * FROM model_versions WHERE ($1::text IS NULL OR name = $1)"
            " AND ($2::uuid IS NULL OR id > $2) ORDER BY id LIMIT $3",
            name,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _version)

    async def update(
        self, name: str, version: str, changes: Members, match: Match, by: By
    ) -> ModelVersion:
        """Change terms, by a merge patch.

        Raises:
            Missing: there is no such version.
            Outdated: it is not the revision that was asked for.
            Conflict: its output would have no room in its context.
            msgspec.ValidationError: the result can't be.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, name, version)
            check(match, before.revision)
            terms = merged(Terms, before, changes)
            if (terms.default_max_tokens or 0) > before.context_length:
                raise Conflict(
                    "`default_max_tokens` must not exceed `context_length`", "default_max_tokens"
                )
            if all(getattr(terms, each) == getattr(before, each) for each in _TERMS):
                return before
            [row] = await connection.fetch(
                "UPDATE model_versions SET sampling = $2, price = $3, tiers = $4,"
                " default_max_tokens = $5 WHERE id = $1 RETURNING *",
                before.id,
                *(_column(getattr(terms, each), each) for each in _TERMS),
            )
            after = _version(row)
            await self._journal(connection, by, "update", before, after)
        return after

    async def promote(
        self, name: str, version: str, to: Promotion, match: Match, by: By
    ) -> ModelVersion:
        """Bring a version into a stage; who is in it leaves it, in the same moment.

        Raises:
            Missing: there is no such version.
            Outdated: it is not the revision that was asked for.
            Conflict: see `stages.promote`.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, name, version)
            check(match, before.revision)
            moves = promote(before, to, await _staged(connection))
            return await self._move(connection, before, moves, "promote", by)

    async def retire(self, name: str, version: str, match: Match, by: By) -> ModelVersion:
        """Take a version out of its stage. It can be promoted again.

        Raises:
            Missing: there is no such version.
            Outdated: it is not the revision that was asked for.
            Conflict: see `stages.retire`.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, name, version)
            check(match, before.revision)
            moves = retire(before, await _staged(connection))
            return await self._move(connection, before, moves, "retire", by)

    async def _move(
        self,
        connection: Connection,
        version: ModelVersion,
        moves: Sequence[Move],
        verb: str,
        by: By,
    ) -> ModelVersion:
        after = version
        for move in moves:
            [row] = await connection.fetch(
                "UPDATE model_versions SET stage = $2, share = $3, staged_at = now()"
                " WHERE id = $1 RETURNING *",
                move.version.id,
                move.stage,
                move.share,
            )
            moved = _version(row)
            await self._journal(
                connection, by, verb if moved.id == version.id else "retire", move.version, moved
            )
            if moved.id == version.id:
                after = moved
        return after


async def changed_versions(pool: asyncpg.Pool, since: int) -> list[ModelVersion]:
    """Versions that changed after a revision. Revisions become visible in order, so that "newer
    than n" misses nothing."""
    rows = await pool.fetch("SELECT * FROM model_versions WHERE revision > $1", since)
    return [_version(row) for row in rows]


async def _find(reader: asyncpg.Pool | Connection, name: str, version: str) -> ModelVersion:
    row = None
    if "\0" not in name + version:  # which no text of Postgres's holds
        column = "stage" if version in STAGES else "version"
        row = await reader.fetchrow(
            f"SELECT * FROM model_versions WHERE name = $1 AND {column} = $2", name, version
        )
    if row is None:
        raise Missing(f"there is no version `{version}` of a model `{name}`")
    return _version(row)


async def _staged(connection: Connection) -> list[ModelVersion]:
    rows = await connection.fetch("SELECT * FROM model_versions WHERE stage IS NOT NULL")
    return [_version(row) for row in rows]


def _column(value: Any, name: str) -> Any:
    if name in _JSON:
        return None if value is None else msgspec.json.encode(value).decode()
    return list(value) if isinstance(value, tuple) else value


def _version(row: asyncpg.Record) -> ModelVersion:
    values: Mapping[str, Any] = {
        name: msgspec.json.decode(value) if name in _JSON and value is not None else value
        for name, value in row.items()
    }
    return msgspec.convert(values, ModelVersion)
