"""The audit log: who changed what, before and after. It only ever grows; Postgres sees to that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.roles import Place
from sluice.gateway.tenancy.transactions import Connection

ObjectType = Literal[
    "organisation", "team", "key", "token", "model", "replica", "routing", "router_model"
]


@dataclass(frozen=True, slots=True)
class By:
    """Who makes a change, and in which request.

    Attributes:
        actor: `token:<id>`, `person:<subject>`, `environment`, or `bootstrap` for what a new
            installation gives itself.
        name: for people.
    """

    actor: str
    name: str
    request_id: UUID


class Audited(Protocol):
    """A record whose changes are logged. It holds neither secrets nor their hashes."""

    @property
    def id(self) -> UUID:
        """Its id."""

    @property
    def place(self) -> Place:
        """Where it is."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change.

    Attributes:
        action: such as `team.update`.
        before: the record as it was; None: it is new.
        after: the record as it is since.
        request_id: the `x-request-id` of the answer to whoever made the change.
    """

    id: UUID
    time: datetime
    actor: str
    actor_name: str
    action: str
    object_type: str
    object_id: UUID
    organisation_id: UUID | None
    team_id: UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which entries; None: any.

    Attributes:
        start: inclusive, UTC.
        end: exclusive, UTC.
    """

    actor: str | None = None
    action: str | None = None
    object_type: str | None = None
    object_id: UUID | None = None
    organisation_id: UUID | None = None
    team_id: UUID | None = None
    start: datetime | None = None
    end: datetime | None = None


async def record(
    connection: Connection,
    by: By,
    object_type: ObjectType,
    verb: str,
    before: Audited | None,
    after: Audited,
) -> None:
    """Log a change, in its transaction."""
    place = after.place
    await connection.execute(
        "INSERT INTO audit_log VALUES"
        " ($1, clock_timestamp(), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        uuid_utils.compat.uuid7(),
        by.actor,
        by.name,
        f"{object_type}.{verb}",
        object_type,
        after.id,
        place.organisation_id,
        place.team_id,
        None if before is None else _snapshot(before),
        _snapshot(after),
        by.request_id,
    )


class AuditLog:
    """Reads the log."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def page(self, filters: Filters, turn: Turn) -> Page[Entry]:
        """Entries, newest first."""
        rows = await self._pool.fetch(
            "SELECT * FROM audit_log WHERE ($1::uuid IS NULL OR id < $1)"
            " AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3)"
            " AND ($4::text IS NULL OR object_type = $4) AND ($5::uuid IS NULL OR object_id = $5)"
            " AND ($6::uuid IS NULL OR organisation_id = $6)"
            " AND ($7::uuid IS NULL OR team_id = $7)"
            " AND ($8::timestamptz IS NULL OR time >= $8)"
            " AND ($9::timestamptz IS NULL OR time < $9)"
            " ORDER BY id DESC LIMIT $10",
            turn.after,
            filters.actor,
            filters.action,
            filters.object_type,
            filters.object_id,
            filters.organisation_id,
            filters.team_id,
            filters.start,
            filters.end,
            turn.limit + 1,
        )
        return turn.page(rows, _entry)


def _snapshot(record: Audited) -> str:
    members: dict[str, Any] = msgspec.to_builtins(record)
    members.pop("revision", None)
    return msgspec.json.encode(members).decode()


def _entry(row: asyncpg.Record) -> Entry:
    values: dict[str, Any] = dict(row.items())
    for name in ("before", "after"):
        if values[name] is not None:
            values[name] = msgspec.json.decode(values[name])
    return Entry(**values)
