"""Organisations: those who pay, above their teams."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.limits import Limits
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.records import (
    Limited,
    Members,
    Slug,
    as_uuid,
    check_slug,
    check_time_zone,
    flattened,
    limits_column,
    merged,
)
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.roles import Place
from sluice.gateway.tenancy.transactions import Connection, change

#: The organisation of teams that are made without naming one; the schema makes it.
DEFAULT_ORGANISATION = UUID("01900000-0000-7000-8000-000000000001")

_COLUMNS = "id, name, time_zone, limits, created_at, archived_at, revision"


class NewOrganisation(
    Limits, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """What may be said of an organisation, when it is made and later.

    Attributes:
        name: a slug, unique.
        time_zone: by its IANA name; where the periods of budgets begin.
    """

    name: Slug
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slug(self.name)
        check_time_zone(self.time_zone)


class Organisation(Limited, frozen=True, kw_only=True):
    """An organisation.

    Attributes:
        archived_at: from then on its keys are refused.
    """

    time_zone: str
    archived_at: datetime | None

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(str(self.id))


class Organisations:
    """Reads and changes organisations."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create(self, new: NewOrganisation, by: By) -> Organisation:
        """A new organisation.

        Raises:
            Conflict: the name is taken.
        """
        async with change(self._pool) as connection:
            try:
                [row] = await connection.fetch(
                    f"INSERT INTO organisations (id, name, time_zone, limits)"
                    f" VALUES ($1, $2, $3, $4) RETURNING {_COLUMNS}",
                    uuid_utils.compat.uuid7(),
                    new.name,
                    new.time_zone,
                    limits_column(new),
                )
            except asyncpg.UniqueViolationError:
                raise _taken(new.name) from None
            made = _organisation(row)
            await record(connection, by, "organisation", "create", None, made)
        return made

    async def find(self, id_or_name: str) -> Organisation:
        """An organisation by id or by name.

        Raises:
            Missing: there is none.
        """
        organisation_id = as_uuid(id_or_name)
        row = None
        if organisation_id is not None:
            row = await self._pool.fetchrow(_BY_ID, organisation_id)
        elif "\0" not in id_or_name:  # which no text of Postgres's holds
            row = await self._pool.fetchrow(
                f"SELECT {_COLUMNS} FROM organisations WHERE name = $1", id_or_name
            )
        if row is None:
            raise Missing(f"there is no organisation `{id_or_name}`")
        return _organisation(row)

    async def page(self, within: UUID | None, turn: Turn) -> Page[Organisation]:
        """Organisations, oldest first: all, or only the one that the caller is confined to."""
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM organisations WHERE ($1::uuid IS NULL OR id = $1)"
            " AND ($2::uuid IS NULL OR id > $2) ORDER BY id LIMIT $3",
            within,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _organisation)

    async def update(
        self, organisation_id: UUID, changes: Members, match: Match, by: By
    ) -> Organisation:
        """Change members, by a merge patch.

        Raises:
            Missing: there is no such organisation.
            Outdated: it is not the revision that was asked for.
            Conflict: it is archived, or the name is taken.
            msgspec.ValidationError: the result can't be.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, organisation_id)
            check(match, before.revision)
            if before.archived_at is not None:
                raise Conflict("the organisation is archived")
            fields = merged(NewOrganisation, before, changes)
            try:
                row = await connection.fetchrow(
                    "UPDATE organisations SET name = $2, time_zone = $3, limits = $4 WHERE id = $1"
                    f" AND (name, time_zone, limits) IS DISTINCT FROM ($2, $3, $4::jsonb)"
                    f" RETURNING {_COLUMNS}",
                    organisation_id,
                    fields.name,
                    fields.time_zone,
                    limits_column(fields),
                )
            except asyncpg.UniqueViolationError:
                raise _taken(fields.name) from None
            if row is None:
                return before
            after = _organisation(row)
            await record(connection, by, "organisation", "update", before, after)
        return after

    async def archive(self, organisation_id: UUID, match: Match, by: By) -> Organisation:
        """Refuse its use from now on. Its name stays taken.

        Raises:
            Missing: there is no such organisation.
            Outdated: it is not the revision that was asked for.
            Conflict: it has teams that are not archived.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, organisation_id)
            check(match, before.revision)
            if before.archived_at is not None:
                return before
            if await connection.fetchval(
                "SELECT EXISTS (SELECT FROM teams"
                " WHERE organisation_id = $1 AND archived_at IS NULL)",
                organisation_id,
            ):
                raise Conflict("the organisation has teams; archive them first")
            [row] = await connection.fetch(
                f"UPDATE organisations SET archived_at = now() WHERE id = $1 RETURNING {_COLUMNS}",
                organisation_id,
            )
            after = _organisation(row)
            await record(connection, by, "organisation", "archive", before, after)
        return after


_BY_ID = f"SELECT {_COLUMNS} FROM organisations WHERE id = $1"


async def _current(connection: Connection, organisation_id: UUID) -> Organisation:
    row = await connection.fetchrow(_BY_ID, organisation_id)
    if row is None:
        raise Missing("there is no such organisation")
    return _organisation(row)


def _organisation(row: asyncpg.Record) -> Organisation:
    return Organisation(**flattened(row))


def _taken(name: str) -> Conflict:
    return Conflict(f"an organisation named `{name}` exists", "name")
