"""Keys: what a team's programs call with. A key is shown once; its hash is what is kept."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.gateway.secrets import key_hash, key_hint, new_key
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.limits import Limits
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.records import (
    Label,
    Limited,
    Members,
    flattened,
    in_utc,
    limits_column,
    merged,
)
from sluice.gateway.tenancy.refusals import Conflict, Missing
from sluice.gateway.tenancy.roles import Place
from sluice.gateway.tenancy.transactions import Connection, change

_COLUMNS = (
    "k.id, t.organisation_id, k.team_id, k.name, k.hint, k.limits, k.created_at, k.expires_at,"
    " k.revoked_at, k.replaced_by, k.revision"
)
_KEYS = f"SELECT {_COLUMNS} FROM api_keys k JOIN teams t ON t.id = k.team_id"
_BY_ID = f"{_KEYS} WHERE k.id = $1"


class KeyMembers(
    Limits, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """What may be said of a key, when it is made and later.

    Attributes:
        name: what it is for.
        expires_at: from when on it is refused; without an offset it is UTC.
    """

    name: Label = ""
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        in_utc(self.expires_at)


class Key(Limited, frozen=True, kw_only=True):
    """A key's record, without the key.

    Attributes:
        hint: the key's beginning and end.
        revoked_at: from when on it is refused; may lie ahead.
        replaced_by: the key that a rotation put in its place.
    """

    organisation_id: UUID
    team_id: UUID
    hint: str
    expires_at: datetime | None
    revoked_at: datetime | None
    replaced_by: UUID | None

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(str(self.organisation_id), str(self.team_id))


class Keys:
    """Reads and changes keys."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create(self, team_id: UUID, new: KeyMembers, by: By) -> tuple[Key, str]:
        """A new key: its record, and the key itself, which is not kept.

        Raises:
            Missing: there is no such team.
            Conflict: the team is archived.
        """
        async with change(self._pool) as connection:
            archived = await connection.fetchrow(
                "SELECT archived_at IS NOT NULL AS yes FROM teams WHERE id = $1", team_id
            )
            if archived is None:
                raise Missing("there is no such team")
            if archived["yes"]:
                raise Conflict("the team is archived")
            key = new_key()
            made = await insert_key(connection, team_id, new, key)
            await record(connection, by, "key", "create", None, made)
        return made, key

    async def find(self, key_id: UUID) -> Key:
        """A key by id.

        Raises:
            Missing: there is none.
        """
        return _found(await self._pool.fetchrow(_BY_ID, key_id))

    async def page(
        self, organisation_id: UUID | None, team_id: UUID | None, turn: Turn
    ) -> Page[Key]:
        """Keys, oldest first: of one team, of one organisation's teams, or all."""
        rows = await self._pool.fetch(
            f"{_KEYS} WHERE ($1::uuid IS NULL OR t.organisation_id = $1)"
            " AND ($2::uuid IS NULL OR k.team_id = $2) AND ($3::uuid IS NULL OR k.id > $3)"
            " ORDER BY k.id LIMIT $4",
            organisation_id,
            team_id,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _key)

    async def update(self, key_id: UUID, changes: Members, match: Match, by: By) -> Key:
        """Change members, by a merge patch.

        Raises:
            Missing: there is no such key.
            Outdated: it is not the revision that was asked for.
            Conflict: it is revoked.
            msgspec.ValidationError: the result can't be.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, key_id)
            check(match, before.revision)
            if await connection.fetchval(
                "SELECT revoked_at <= now() FROM api_keys WHERE id = $1", key_id
            ):
                raise Conflict("the key is revoked")
            members = merged(KeyMembers, before, changes)
            changed = await connection.fetchval(
                "UPDATE api_keys SET name = $2, expires_at = $3, limits = $4 WHERE id = $1"
                " AND (name, expires_at, limits) IS DISTINCT FROM ($2, $3, $4::jsonb) RETURNING id",
                key_id,
                members.name,
                in_utc(members.expires_at),
                limits_column(members),
            )
            if changed is None:
                return before
            after = await _current(connection, key_id)
            await record(connection, by, "key", "update", before, after)
        return after

    async def revoke(self, key_id: UUID, match: Match, by: By) -> Key:
        """Refuse a key from now on; an earlier end stays.

        Raises:
            Missing: there is no such key.
            Outdated: it is not the revision that was asked for.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, key_id)
            check(match, before.revision)
            if not await _end(connection, key_id, timedelta(0)):
                return before
            after = await _current(connection, key_id)
            await record(connection, by, "key", "revoke", before, after)
        return after

    async def rotate(self, key_id: UUID, overlap: timedelta, by: By) -> tuple[Key, str]:
        """A new key in an old one's place, with its name, limits and expiry; the old one is
        refused after the overlap.

        Raises:
            Missing: there is no such key.
            Conflict: the key is revoked, expired, or its team archived.
        """
        async with change(self._pool) as connection:
            before = await _current(connection, key_id)
            if await connection.fetchval(
                "SELECT least(k.revoked_at, k.expires_at, t.archived_at) <= now()"
                " FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE k.id = $1",
                key_id,
            ):
                raise Conflict("the key is revoked, expired or its team's, which is archived")
            key = new_key()
            made = await insert_key(connection, before.team_id, merged(KeyMembers, before, {}), key)
            await _end(connection, key_id, overlap)
            await connection.execute(
                "UPDATE api_keys SET replaced_by = $2 WHERE id = $1", key_id, made.id
            )
            after = await _current(connection, key_id)
            await record(connection, by, "key", "rotate", before, after)
        return made, key


async def insert_key(connection: Connection, team_id: UUID, new: KeyMembers, key: str) -> Key:
    """Add a key, within a change.

    Raises:
        asyncpg.UniqueViolationError: it is there already.
    """
    key_id = uuid_utils.compat.uuid7()
    await connection.execute(
        "INSERT INTO api_keys (id, team_id, name, hash, hint, expires_at, limits)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        key_id,
        team_id,
        new.name,
        key_hash(key),
        key_hint(key),
        in_utc(new.expires_at),
        limits_column(new),
    )
    return await _current(connection, key_id)


async def _end(connection: Connection, key_id: UUID, overlap: timedelta) -> bool:
    """Whether that brings its end nearer."""
    ended = await connection.fetchval(
        "UPDATE api_keys SET revoked_at = now() + $2 WHERE id = $1"
        " AND (revoked_at IS NULL OR revoked_at > now() + $2) RETURNING id",
        key_id,
        overlap,
    )
    return ended is not None


async def _current(connection: Connection, key_id: UUID) -> Key:
    return _found(await connection.fetchrow(_BY_ID, key_id))


def _found(row: asyncpg.Record | None) -> Key:
    if row is None:
        raise Missing("there is no such key")
    return _key(row)


def _key(row: asyncpg.Record) -> Key:
    return Key(**flattened(row))
