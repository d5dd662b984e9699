"""Routing documents in Postgres."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.routing.records import RoutingRecord, RoutingVersion
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.teams import Team
from sluice.gateway.tenancy.transactions import Connection, change
from sluice.router.auto.documents import RoutingDocument

_SELECT = (
    "SELECT d.id, d.alias, d.team_id, t.organisation_id, d.version, d.document, d.changed_at,"
    " d.revision FROM routing_documents d LEFT JOIN teams t ON t.id = d.team_id"
)

#: Scores that a process begins with, of all aliases and teams together.
_SEED = 20_000


class RoutingDocuments:
    """Reads and changes routing documents; every change is a version and is in the audit log."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def find(self, alias: str, team_id: UUID | None) -> RoutingRecord:
        """What was put for an alias, of one team or of all others.

        Raises:
            Missing: nothing ever was.
        """
        found = await _find(self._pool, alias, team_id)
        if found is None:
            raise _missing(alias)
        return found

    async def page(
        self, organisation_id: UUID | None, team_id: UUID | None, turn: Turn
    ) -> Page[RoutingRecord]:
        """Documents, oldest first.

        Args:
            organisation_id: of this organisation's teams only; None: all.
            team_id: of this team only; None: all.
            turn: which page.
        """
        rows = await self._pool.fetch(
            f"{_SELECT} WHERE ($1::uuid IS NULL OR t.organisation_id = $1)"
            " AND ($2::uuid IS NULL OR d.team_id = $2) AND ($3::uuid IS NULL OR d.id > $3)"
            " ORDER BY d.id LIMIT $4",
            organisation_id,
            team_id,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _record)

    async def versions(self, alias: str, team_id: UUID | None) -> list[RoutingVersion]:
        """All versions, newest first.

        Raises:
            Missing: there are none.
        """
        found = await self.find(alias, team_id)
        rows = await self._pool.fetch(
            "SELECT version, document, created_at, actor FROM routing_versions"
            " WHERE routing_id = $1 ORDER BY version DESC",
            found.id,
        )
        return [
            RoutingVersion(
                version=row["version"],
                document=document,
                created_at=row["created_at"],
                actor=row["actor"],
                unreadable=unreadable,
            )
            for row in rows
            for document, unreadable in (_document(row["document"]),)
        ]

    async def put(
        self, alias: str, team: Team | None, document: RoutingDocument, match: Match, by: By
    ) -> RoutingRecord:
        """Put a document in force.

        Raises:
            Outdated: what is there has another revision.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, alias, None if team is None else team.id)
            check(match, 0 if before is None else before.revision)
            if before is None:
                return await self._create(connection, alias, team, document, by)
            return await self._change(connection, before, document, "update", by)

    async def remove(self, alias: str, team_id: UUID | None, match: Match, by: By) -> RoutingRecord:
        """Take a document out of force: what is more general holds again. It can be rolled back.

        Raises:
            Missing: there is none.
            Outdated: it has another revision.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, alias, team_id)
            if before is None or (before.document is None and before.unreadable is None):
                raise _missing(alias)
            check(match, before.revision)
            return await self._change(connection, before, None, "delete", by)

    async def roll_back(
        self, alias: str, team_id: UUID | None, version: int | None, match: Match, by: By
    ) -> RoutingRecord:
        """Put an earlier version in force again, as a new one.

        Args:
            alias, team_id: whose.
            version: None: the one before the present one; 0: none, as before the first.
            match: revisions that it is meant for.
            by: who does it.

        Raises:
            Missing: there is no such version.
            Conflict: this release can't read it.
            Outdated: the document has another revision.
        """
        async with change(self._pool) as connection:
            before = await _find(connection, alias, team_id)
            if before is None:
                raise _missing(alias)
            check(match, before.revision)
            wanted = before.version - 1 if version is None else version
            document: RoutingDocument | None = None
            if wanted != 0:
                row = await connection.fetchrow(
                    "SELECT document FROM routing_versions WHERE routing_id = $1 AND version = $2",
                    before.id,
                    wanted,
                )
                if row is None:
                    raise Missing(f"`{alias}` has no version {wanted}")
                document, unreadable = _document(row["document"])
                if unreadable is not None:
                    raise Conflict(f"version {wanted} is not readable: {unreadable}", "version")
            return await self._change(connection, before, document, "rollback", by)

    async def _create(
        self,
        connection: Connection,
        alias: str,
        team: Team | None,
        document: RoutingDocument,
        by: By,
    ) -> RoutingRecord:
        made = uuid_utils.compat.uuid7()
        await connection.execute(
            "INSERT INTO routing_documents (id, alias, team_id, version, document)"
            " VALUES ($1, $2, $3, 1, $4)",
            made,
            alias,
            None if team is None else team.id,
            _column(document),
        )
        return await self._noted(connection, made, "create", None, by)

    async def _change(
        self,
        connection: Connection,
        before: RoutingRecord,
        document: RoutingDocument | None,
        verb: str,
        by: By,
    ) -> RoutingRecord:
        if document == before.document and before.unreadable is None:
            return before
        await connection.execute(
            "UPDATE routing_documents SET version = version + 1, document = $2,"
            " changed_at = now() WHERE id = $1",
            before.id,
            _column(document),
        )
        return await self._noted(connection, before.id, verb, before, by)

    async def _noted(
        self, connection: Connection, of: UUID, verb: str, before: RoutingRecord | None, by: By
    ) -> RoutingRecord:
        """The document as it is since, which becomes a version and an entry in the audit log."""
        [row] = await connection.fetch(f"{_SELECT} WHERE d.id = $1", of)
        after = _record(row)
        await connection.execute(
            "INSERT INTO routing_versions (routing_id, version, document, actor)"
            " VALUES ($1, $2, $3, $4)",
            of,
            after.version,
            _column(after.document),
            by.actor,
        )
        await record(connection, by, "routing", verb, before, after)
        return after


async def changed_documents(pool: asyncpg.Pool, since: int) -> list[RoutingRecord]:
    """Documents that changed after a revision. Revisions become visible in order, so that "newer
    than n" misses nothing."""
    rows = await pool.fetch(f"{_SELECT} WHERE d.revision > $1", since)
    return [_record(row) for row in rows]


async def last_scores(pool: asyncpg.Pool) -> list[tuple[str, str, str, float]]:
    """The scores of the last requests: alias, team, scorer and score, the oldest first."""
    rows = await pool.fetch(
        "SELECT alias, team_id::text AS team_id, scorer, score FROM route_decisions"
        " ORDER BY time DESC LIMIT $1",
        _SEED,
    )
    return [(row["alias"], row["team_id"], row["scorer"], row["score"]) for row in reversed(rows)]


def _missing(alias: str) -> Missing:
    return Missing(f"there is no routing document of `{alias}`")


async def _find(
    reader: asyncpg.Pool | Connection, alias: str, team_id: UUID | None
) -> RoutingRecord | None:
    if "\0" in alias:  # which no text of Postgres's holds
        return None
    row = await reader.fetchrow(
        f"{_SELECT} WHERE d.alias = $1 AND d.team_id IS NOT DISTINCT FROM $2", alias, team_id
    )
    return None if row is None else _record(row)


def _column(document: RoutingDocument | None) -> str | None:
    if document is None:
        return None
    return msgspec.json.encode(document).decode()


def _document(text: str | None) -> tuple[RoutingDocument | None, str | None]:
    """A document, or what is wrong with it."""
    if text is None:
        return None, None
    try:
        return msgspec.json.decode(text, type=RoutingDocument), None
    except msgspec.DecodeError as error:
        return None, str(error)


def _record(row: asyncpg.Record) -> RoutingRecord:
    values: dict[str, Any] = dict(row.items())
    values["document"], values["unreadable"] = _document(values["document"])
    return RoutingRecord(**values)
