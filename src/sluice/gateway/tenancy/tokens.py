"""Admin tokens: what programs call the admin API with. A token is shown once; its hash is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.secrets import key_hash, key_hint, new_key
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.matching import Match, check
from sluice.gateway.tenancy.pages import Page, Turn
from sluice.gateway.tenancy.records import Label, in_utc
from sluice.gateway.tenancy.refusals import Missing
from sluice.gateway.tenancy.roles import Permission, Place, Role
from sluice.gateway.tenancy.transactions import Connection, change

_COLUMNS = (
    "id, name, role, organisation_id, team_id, scopes, hint, created_at, expires_at, revoked_at,"
    " revision"
)
_BY_ID = f"SELECT {_COLUMNS} FROM admin_tokens WHERE id = $1"


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /admin/tokens`.

    Attributes:
        name: what it is for.
        organisation: id or name of the one that it is confined to.
        team: id or name of the one that it is confined to; a `team_admin` has one.
        scopes: permissions that it is narrowed to; by default it has all of its role.
        expires_at: from when on it is refused; without an offset it is UTC.
    """

    name: Annotated[Label, msgspec.Meta(min_length=1)]
    role: Role
    organisation: str | None = None
    team: str | None = None
    scopes: Annotated[list[Permission], msgspec.Meta(min_length=1)] | None = None
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        in_utc(self.expires_at)
        if self.role == "team_admin" and self.team is None:
            raise ValueError("a team_admin needs a `team`")
        if self.role == "owner" and self.team is not None:
            raise ValueError("an owner is of an organisation or of all, without a `team`")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token's record, without the token.

    Attributes:
        organisation_id: the organisation that it is confined to; None: the whole installation.
        team_id: the team that it is confined to.
        scopes: permissions that it is narrowed to; None: all of its role.
        hint: the token's beginning and end.
    """

    id: UUID
    name: str
    role: Role
    organisation_id: UUID | None
    team_id: UUID | None
    scopes: list[Permission] | None
    hint: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revision: int

    @property
    def place(self) -> Place:
        """Where it is: what it is confined to."""
        return Place(_text(self.organisation_id), _text(self.team_id))


class Tokens:
    """Reads and changes tokens."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def create(self, new: NewToken, place: Place, by: By) -> tuple[Token, str]:
        """A new token: its record, and the token itself, which is not kept.

        Args:
            new: what it is to be.
            place: what it is confined to.
            by: who makes it; that they may is not checked here.
        """
        token = new_key()
        async with change(self._pool) as connection:
            made = await insert_token(connection, new, place, token)
            await record(connection, by, "token", "create", None, made)
        return made, token

    async def find(self, token_id: UUID) -> Token:
        """A token by id.

        Raises:
            Missing: there is none.
        """
        row = await self._pool.fetchrow(_BY_ID, token_id)
        if row is None:
            raise Missing("there is no such token")
        return _token(row)

    async def page(
        self, organisation_id: UUID | None, team_id: UUID | None, turn: Turn
    ) -> Page[Token]:
        """Tokens, oldest first: confined to one organisation or team, or all."""
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM admin_tokens"
            " WHERE ($1::uuid IS NULL OR organisation_id = $1)"
            " AND ($2::uuid IS NULL OR team_id = $2) AND ($3::uuid IS NULL OR id > $3)"
            " ORDER BY id LIMIT $4",
            organisation_id,
            team_id,
            turn.after,
            turn.limit + 1,
        )
        return turn.page(rows, _token)

    async def revoke(self, token_id: UUID, match: Match, by: By) -> Token:
        """Refuse a token from now on.

        Raises:
            Missing: there is no such token.
            Outdated: it is not the revision that was asked for.
        """
        async with change(self._pool) as connection:
            row = await connection.fetchrow(_BY_ID, token_id)
            if row is None:
                raise Missing("there is no such token")
            before = _token(row)
            check(match, before.revision)
            if before.revoked_at is not None:
                return before
            [row] = await connection.fetch(
                f"UPDATE admin_tokens SET revoked_at = now() WHERE id = $1 RETURNING {_COLUMNS}",
                token_id,
            )
            after = _token(row)
            await record(connection, by, "token", "revoke", before, after)
        return after


async def insert_token(connection: Connection, new: NewToken, place: Place, token: str) -> Token:
    """Add a token, within a change."""
    [row] = await connection.fetch(
        "INSERT INTO admin_tokens"
        " (id, name, role, organisation_id, team_id, scopes, hash, hint, expires_at)"
        f" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING {_COLUMNS}",
        uuid_utils.compat.uuid7(),
        new.name,
        new.role,
        place.organisation_id,
        place.team_id,
        None if new.scopes is None else sorted(set(new.scopes)),
        key_hash(token),
        key_hint(token),
        in_utc(new.expires_at),
    )
    return _token(row)


def _token(row: asyncpg.Record) -> Token:
    values: dict[str, Any] = dict(row.items())
    return Token(**values)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
