"""Organisations, teams and keys in Postgres: the control plane's side of tenancy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.secrets import key_hash, key_hint, new_key
from sluice.gateway.tenancy.limits import NO_LIMITS, Limits


class Conflict(Exception):
    """The thing exists already."""


class Missing(Exception):
    """There is no such thing."""


@dataclass(frozen=True, slots=True)
class Team:
    """A tenant.

    Attributes:
        name: a slug, unique.
    """

    id: UUID
    organisation_id: UUID
    name: str
    limits: Limits
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Key:
    """A key's record, without the key.

    Attributes:
        hint: the key's beginning and end.
        revoked_at: from when on it is refused; may lie ahead.
    """

    id: UUID
    team_id: UUID
    name: str
    hint: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What a gateway must know of a key that changed, or whose team or organisation did."""

    revision: int
    hash: bytes
    key_id: UUID
    key_name: str
    key_limits: Limits
    team_id: UUID
    team_name: str
    team_limits: Limits
    organisation_id: UUID
    organisation_name: str
    organisation_limits: Limits
    time_zone: str
    valid_until: datetime | None


#: The organisation of teams that are made without naming one; the schema makes it.
DEFAULT_ORGANISATION = UUID("01900000-0000-7000-8000-000000000001")

_TEAM = "id, organisation_id, name, limits, created_at"
_KEY = "id, team_id, name, hint, created_at, expires_at, revoked_at"

_CHANGES = """
WITH changed AS (
    SELECT k.id FROM api_keys k WHERE k.revision > $1
    UNION
    SELECT k.id FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE t.revision > $1
    UNION
    SELECT k.id FROM api_keys k JOIN teams t ON t.id = k.team_id
        JOIN organisations o ON o.id = t.organisation_id WHERE o.revision > $1
)
SELECT greatest(k.revision, t.revision, o.revision) AS revision, k.hash, k.id AS key_id,
    k.name AS key_name, k.limits AS key_limits, t.id AS team_id, t.name AS team_name,
    t.limits AS team_limits, o.id AS organisation_id, o.name AS organisation_name,
    o.limits AS organisation_limits, o.time_zone, least(k.expires_at, k.revoked_at) AS valid_until
FROM changed JOIN api_keys k USING (id) JOIN teams t ON t.id = k.team_id
    JOIN organisations o ON o.id = t.organisation_id
"""


class Tenancy:
    """Reads and writes teams and keys. Never on the request path."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create_team(self, name: str, limits: Limits = NO_LIMITS) -> Team:
        """A new team.

        Raises:
            Conflict: the name is taken.
        """
        try:
            rows = await self._pool.fetch(
                f"INSERT INTO teams (id, organisation_id, name, limits) VALUES ($1, $2, $3, $4)"
                f" RETURNING {_TEAM}",
                uuid_utils.compat.uuid7(),
                DEFAULT_ORGANISATION,
                name,
                _text(limits),
            )
        except asyncpg.UniqueViolationError:
            raise Conflict(f"a team named `{name}` exists") from None
        return _team(rows[0])

    async def list_teams(self) -> list[Team]:
        """All teams, oldest first."""
        return [
            _team(row) for row in await self._pool.fetch(f"SELECT {_TEAM} FROM teams ORDER BY id")
        ]

    async def find_team(self, id_or_name: str) -> Team:
        """A team by id or by name.

        Raises:
            Missing: there is none.
        """
        row = None
        if "\0" not in id_or_name:  # which no text of Postgres's holds
            row = await self._pool.fetchrow(
                f"SELECT {_TEAM} FROM teams WHERE id::text = $1 OR name = $1", id_or_name
            )
        if row is None:
            raise Missing(f"there is no team `{id_or_name}`")
        return _team(row)

    async def create_key(
        self, team_id: UUID, name: str = "", expires_at: datetime | None = None
    ) -> tuple[Key, str]:
        """A new key: its record, and the key itself, which is not kept.

        Raises:
            Missing: there is no such team.
        """
        key = new_key()
        try:
            rows = await self._pool.fetch(
                f"INSERT INTO api_keys (id, team_id, name, hash, hint, expires_at)"
                f" VALUES ($1, $2, $3, $4, $5, $6) RETURNING {_KEY}",
                uuid_utils.compat.uuid7(),
                team_id,
                name,
                key_hash(key),
                key_hint(key),
                expires_at,
            )
        except asyncpg.ForeignKeyViolationError:
            raise Missing("there is no such team") from None
        return Key(**rows[0]), key

    async def list_keys(self, team_id: UUID | None = None) -> list[Key]:
        """Keys, oldest first: of one team, or all."""
        rows = await self._pool.fetch(
            f"SELECT {_KEY} FROM api_keys WHERE ($1::uuid IS NULL OR team_id = $1) ORDER BY id",
            team_id,
        )
        return [Key(**row) for row in rows]

    async def revoke_key(self, key_id: UUID, overlap: timedelta = timedelta(0)) -> Key:
        """Refuse a key from now on, or after an overlap; an earlier end stays.

        Raises:
            Missing: there is no such key.
        """
        row = await self._pool.fetchrow(
            f"UPDATE api_keys SET revoked_at = least(revoked_at, $2) WHERE id = $1"
            f" RETURNING {_KEY}",
            key_id,
            datetime.now(UTC) + overlap,
        )
        if row is None:
            raise Missing("there is no such key")
        return Key(**row)

    async def rotate_key(self, key_id: UUID, overlap: timedelta) -> tuple[Key, str]:
        """A new key in an old one's place; the old one is refused after the overlap.

        Raises:
            Missing: there is no such key.
            Conflict: the key is revoked or expired.
        """
        row = await self._pool.fetchrow(f"SELECT {_KEY} FROM api_keys WHERE id = $1", key_id)
        if row is None:
            raise Missing("there is no such key")
        old = Key(**row)
        now = datetime.now(UTC)
        if any(end is not None and end <= now for end in (old.revoked_at, old.expires_at)):
            raise Conflict("the key is revoked or expired; create a new one")
        made = await self.create_key(old.team_id, old.name, old.expires_at)
        await self.revoke_key(key_id, overlap)
        return made

    async def changes(self, since: int) -> list[KeyChange]:
        """Keys that changed, or whose team did, after a revision."""
        return [_change(row) for row in await self._pool.fetch(_CHANGES, since)]

    async def admin_hashes(self) -> set[bytes]:
        """Hashes of the admin keys that are kept in the database."""
        return {row["hash"] for row in await self._pool.fetch("SELECT hash FROM admin_keys")}

    async def first_admin_key(self) -> str | None:
        """A generated admin key for an installation that has none; None if it has one."""
        key = new_key()
        made = await self._pool.fetchval(
            "INSERT INTO admin_keys (id, hash, hint)"
            " SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT FROM admin_keys) RETURNING id",
            uuid_utils.compat.uuid7(),
            key_hash(key),
            key_hint(key),
        )
        return None if made is None else key

    async def first_team_key(
        self, given: str | None, default_max_tokens: int, name: str = "default"
    ) -> str | None:
        """See that there is a first team with a key.

        Args:
            given: the key to use, verbatim; None: one is generated if the team has none.
            default_max_tokens: the first team's bound, so that a bare SDK call works.
            name: the first team's name.

        Returns:
            The key if it is new here, else None.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO teams (id, organisation_id, name, limits) VALUES ($1, $2, $3, $4)"
                " ON CONFLICT (name) DO NOTHING",
                uuid_utils.compat.uuid7(),
                DEFAULT_ORGANISATION,
                name,
                _text(Limits(default_max_tokens=default_max_tokens)),
            )
            team_id = await connection.fetchval("SELECT id FROM teams WHERE name = $1", name)
            if given is None and await connection.fetchval(
                "SELECT EXISTS (SELECT FROM api_keys WHERE team_id = $1)", team_id
            ):
                return None
            key = given or new_key()
            made = await connection.fetchval(
                "INSERT INTO api_keys (id, team_id, name, hash, hint)"
                " VALUES ($1, $2, 'first key', $3, $4) ON CONFLICT (hash) DO NOTHING RETURNING id",
                uuid_utils.compat.uuid7(),
                team_id,
                key_hash(key),
                key_hint(key),
            )
        return None if made is None else key


def _team(row: asyncpg.Record) -> Team:
    return Team(**{**row, "limits": _limits(row["limits"])})


def _change(row: asyncpg.Record) -> KeyChange:
    values: dict[str, Any] = dict(row)
    for name in ("organisation_limits", "team_limits", "key_limits"):
        values[name] = _limits(values[name])
    return KeyChange(**values)


def _limits(text: str) -> Limits:
    return msgspec.json.decode(text, type=Limits)


def _text(limits: Limits) -> str:
    return msgspec.json.encode(limits).decode()
