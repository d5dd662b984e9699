"""What a new installation gives itself: a first team with a key, and a first admin token."""

from __future__ import annotations

import asyncpg
import uuid_utils.compat

from sluice.gateway.secrets import key_hash, new_key
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.keys import KeyMembers, insert_key
from sluice.gateway.tenancy.organisations import DEFAULT_ORGANISATION
from sluice.gateway.tenancy.roles import INSTALLATION
from sluice.gateway.tenancy.teams import TeamMembers, insert_team
from sluice.gateway.tenancy.tokens import NewToken, insert_token
from sluice.gateway.tenancy.transactions import change

#: Bound on output that the first team gets, so that a bare SDK call works.
FIRST_TEAM_MAX_TOKENS = 1024

_FIRST_TEAM = "default"


class FirstKeys:
    """Makes what is not there yet; several processes may do so at once."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._by = By("bootstrap", "sluice", uuid_utils.compat.uuid7())

    async def admin_token(self) -> str | None:
        """A generated owner's token for an installation that has none; None if it has one."""
        async with change(self._pool) as connection:
            if await connection.fetchval("SELECT EXISTS (SELECT FROM admin_tokens)"):
                return None
            token = new_key()
            first = NewToken(name="first token", role="owner")
            made = await insert_token(connection, first, INSTALLATION, token)
            await record(connection, self._by, "token", "create", None, made)
        return token

    async def team_key(self, given: str | None, default_max_tokens: int) -> str | None:
        """See that there is a first team with a key.

        Args:
            given: the key to use, verbatim; None: one is generated if the team has none.
            default_max_tokens: the first team's bound, so that a bare SDK call works.

        Returns:
            The key if it is new here, else None.
        """
        async with change(self._pool) as connection:
            team_id = await connection.fetchval("SELECT id FROM teams WHERE name = $1", _FIRST_TEAM)
            if team_id is None:
                new = TeamMembers(name=_FIRST_TEAM, default_max_tokens=default_max_tokens)
                team = await insert_team(connection, DEFAULT_ORGANISATION, new)
                await record(connection, self._by, "team", "create", None, team)
                team_id = team.id
            if await connection.fetchval(
                "SELECT EXISTS (SELECT FROM api_keys"
                " WHERE hash = $2 OR ($2::bytea IS NULL AND team_id = $1))",
                team_id,
                None if given is None else key_hash(given),
            ):
                return None
            key = given or new_key()
            made = await insert_key(connection, team_id, KeyMembers(name="first key"), key)
            await record(connection, self._by, "key", "create", None, made)
        return key
