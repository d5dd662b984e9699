"""Teams: the tenants, each of an organisation."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.limits import Limits
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.organisations import Organisation
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.records import (
    Limited,
    Members,
    Slug,
    as_uuid,
    check_slug,
    flattened,
    limits_column,
    merged,
)
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.roles import Place
from sluice.gateway.tenancy.transactions import Connection, change

_COLUMNS = "id, organisation_id, name, limits, created_at, archived_at, revision"


class TeamMembers(
    Limits, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """What may be changed of a team.

    Attributes:
        name: a slug, unique in the installation.
    """

    name: Slug

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slug(self.name)


class Team(Limited, frozen=True, kw_only=True):
    """A tenant.

    Attributes:
        archived_at: from then on its keys are refused.
    """

    organisation_id: UUID
    archived_at: datetime | None

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(str(self.organisation_id), str(self.id))


class Teams:
    """Reads and changes teams."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create(self, organisation: Organisation, new: TeamMembers, by: By) -> Team:
        """A new team.

        Raises:
            Conflict: the name is taken, or the organisation archived.
        """
        async with change(self._pool) as connection:
            archived = "SELECT archived_at IS NOT NULL FROM organisations WHERE id = $1"
            if await connection.fetchval(archived, organisation.id):
                raise Conflict("the organisation is archived", "organisation")
            made = await insert_team(connection, organisation.id, new)
            await record(connection, by, "team", "create", None, made)
        return made

    async def find(self, id_or_name: str) -> Team:
        """A team by id or by name.

        Raises:
            Missing: there is none.
        """
        team_id = as_uuid(id_or_name)
        row = None
        if team_id is not None:
            row = await self._pool.fetchrow(_BY_ID, team_id)
        elif "\0" not in id_or_name:  # which no text of Postgres's holds
            row = await self._pool.fetchrow(
                f"SELECT {_COLUMNS} FROM teams WHERE name = $1", id_or_name
            )
        if row is None:
            raise Missing(f"there is no team `{id_or_name}`")
        return _team(row)

    async def page(
        self, organisation_id: UUID | None, team_id: UUID | None, turn: Turn
    ) -> Page[Team]:
        """Teams, oldest first: of one organisation or all; or only the one that the caller is
        confined to."""
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM teams WHERE ($1::uuid IS NULL OR organisation_id = $1)"
            " AND ($2::uuid IS NULL OR id = $2) AND ($3::uuid IS NULL OR id > $3)"
            " ORDER BY id LIMIT $4",
            organisation_id,
            team_id,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _team)

    async def update(self, team_id: UUID, changes: Members, match: Match, by: By) -> Team:
        """Change members, by a merge patch.

        Raises:
            Missing: there is no such team.
            Outdated: it is not the revision that was asked for.
            Conflict: it is archived, or the name is taken.
            msgspec.ValidationError: the result can't be.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, team_id)
            check(match, before.revision)
            if before.archived_at is not None:
                raise Conflict("the team is archived")
            members = merged(TeamMembers, before, changes)
            try:
                row = await connection.fetchrow(
                    "UPDATE teams SET name = $2, limits = $3 WHERE id = $1"
                    f" AND (name, limits) IS DISTINCT FROM ($2, $3::jsonb) RETURNING {_COLUMNS}",
                    team_id,
                    members.name,
                    limits_column(members),
                )
            except asyncpg.UniqueViolationError:
                raise _taken(members.name) from None
            if row is None:
                return before
            after = _team(row)
            await record(connection, by, "team", "update", before, after)
        return after

    async def archive(self, team_id: UUID, match: Match, by: By) -> Team:
        """Refuse its keys from now on. Its usage stays, and so does its name.

        Raises:
            Missing: there is no such team.
            Outdated: it is not the revision that was asked for.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, team_id)
            check(match, before.revision)
            if before.archived_at is not None:
                return before
            [row] = await connection.fetch(
                f"UPDATE teams SET archived_at = now() WHERE id = $1 RETURNING {_COLUMNS}", team_id
            )
            after = _team(row)
            await record(connection, by, "team", "archive", before, after)
        return after


async def insert_team(connection: Connection, organisation_id: UUID, new: TeamMembers) -> Team:
    """Add a team, within a change.

    Raises:
        Conflict: the name is taken.
    """
    try:
        [row] = await connection.fetch(
            "INSERT INTO teams (id, organisation_id, name, limits)"
            f" VALUES ($1, $2, $3, $4) RETURNING {_COLUMNS}",
            uuid_utils.compat.uuid7(),
            organisation_id,
            new.name,
            limits_column(new),
        )
    except asyncpg.UniqueViolationError:
        raise _taken(new.name) from None
    return _team(row)


_BY_ID = f"SELECT {_COLUMNS} FROM teams WHERE id = $1"


async def _current(connection: Connection, team_id: UUID) -> Team:
    row = await connection.fetchrow(_BY_ID, team_id)
    if row is None:
        raise Missing("there is no such team")
    return _team(row)


def _team(row: asyncpg.Record) -> Team:
    return Team(**flattened(row))


def _taken(name: str) -> Conflict:
    return Conflict(f"a team named `{name}` exists", "name")
