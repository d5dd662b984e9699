"""Who somebody is here, by what their identity provider says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from sluice.gateway.tenancy.roles import Administrator, Role


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for everybody whose claim has a value.

    Attributes:
        claim: its name; dots lead into objects, as in `realm_access.roles`.
        value: the text that it is, or that is among its values.
        organisation, team: name or id of what the role is confined to; None: not confined.
    """

    claim: str
    value: str
    role: Role
    organisation: str | None = None
    team: str | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who has signed in.

    Attributes:
        subject: the provider's own, lasting id.
        name: for people.
        claims: those that grants look at.
    """

    subject: str
    name: str
    claims: Mapping[str, Any]


def person(claims: Mapping[str, Any], grants: Sequence[Grant]) -> Person:
    """The person of a token's claims, without what nothing asks for."""
    wanted = {grant.claim.partition(".")[0] for grant in grants}
    names = (claims.get(each) for each in ("name", "preferred_username", "email", "sub"))
    name = next(each for each in names if isinstance(each, str) and each)
    return Person(
        claims["sub"], name[:200], {key: claims[key] for key in sorted(wanted) if key in claims}
    )


def grant_of(claims: Mapping[str, Any], grants: Sequence[Grant]) -> Grant | None:
    """The first grant that claims fulfil."""
    return next((grant for grant in grants if grant.value in _values(claims, grant.claim)), None)


def _values(claims: Mapping[str, Any], path: str) -> Sequence[str]:
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


class People:
    """Makes administrators of people."""

    def __init__(self, pool: asyncpg.Pool, grants: Sequence[Grant]) -> None:
        self._pool = pool
        self.grants = grants

    async def administrator(self, somebody: Person) -> Administrator | None:
        """What a person may administer; None: nothing, or what their role was for is gone.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        grant = grant_of(somebody.claims, self.grants)
        if grant is None:
            return None
        organisation_id = team_id = None
        if grant.organisation is not None:
            organisation_id = await self._pool.fetchval(_ORGANISATION, grant.organisation)
            if organisation_id is None:
                return None
        if grant.team is not None:
            row = await self._pool.fetchrow(_TEAM, grant.team, organisation_id)
            if row is None:
                return None
            team_id, organisation_id = row["id"], row["organisation_id"]
        return Administrator(
            actor=f"person:{somebody.subject}",
            name=somebody.name,
            role=grant.role,
            organisation_id=organisation_id and str(organisation_id),
            team_id=team_id and str(team_id),
        )


_ORGANISATION = """
SELECT id FROM organisations WHERE (name = $1 OR id::text = $1) AND archived_at IS NULL
"""
_TEAM = """
SELECT id, organisation_id FROM teams
WHERE (name = $1 OR id::text = $1) AND archived_at IS NULL
    AND ($2::uuid IS NULL OR organisation_id = $2)
"""
