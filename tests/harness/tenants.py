"""Organisations, teams, keys and tokens, made without the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import uuid_utils.compat

from sluice.gateway.tenancy.audit import AuditLog, By
from sluice.gateway.tenancy.keys import Key, KeyMembers, Keys
from sluice.gateway.tenancy.organisations import DEFAULT_ORGANISATION, Organisations
from sluice.gateway.tenancy.records import Members
from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.gateway.tenancy.teams import Team, TeamMembers, Teams
from sluice.gateway.tenancy.tokens import NewToken, Token, Tokens

BY = By("environment", "tests", uuid_utils.compat.uuid7())


def members(**values: Any) -> Members:
    """A merge patch."""
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


class Tenants:
    """What tests begin with, over a migrated database."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.organisations = Organisations(pool)
        self.teams = Teams(pool)
        self.keys = Keys(pool)
        self.tokens = Tokens(pool)
        self.audit = AuditLog(pool)

    async def team(self, name: str = "team", **limits: Any) -> Team:
        owner = await self.organisations.find(str(DEFAULT_ORGANISATION))
        return await self.teams.create(owner, TeamMembers(name=name, **limits), BY)

    async def key(self, team: Team, **given: Any) -> tuple[Key, str]:
        return await self.keys.create(team.id, KeyMembers(**given), BY)

    async def token(self, place: Place = INSTALLATION, **given: Any) -> tuple[Token, str]:
        values = {"name": "token", "role": "owner", **given}
        return await self.tokens.create(NewToken(**values), place, BY)

    async def revoke(self, key_id: UUID) -> None:
        await self.keys.revoke(key_id, None, BY)

    async def rotate(self, key_id: UUID, overlap: timedelta) -> str:
        _, key = await self.keys.rotate(key_id, overlap, BY)
        return key
