"""Who administers, and what they may do where. Decided on values only.

A permission is what one wants to do (`teams:write`), a place where: the installation, an
organisation, or a team. A role gives permissions, scopes narrow them, and confinement to an
organisation or a team says where they hold. What lies outside one's confinement does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

Role = Literal["owner", "team_admin", "auditor"]
Permission = Literal[
    "organisations:read",
    "organisations:write",
    "teams:read",
    "teams:write",
    "keys:read",
    "keys:write",
    "tokens:read",
    "tokens:write",
    "usage:read",
    "audit:read",
    "models:read",
    "models:write",
    "routing:read",
    "routing:write",
]

PERMISSIONS: frozenset[Permission] = frozenset(get_args(Permission))

#: What each role may do, within its confinement.
OF_ROLE: Mapping[Role, frozenset[Permission]] = {
    "owner": PERMISSIONS,
    "team_admin": frozenset(
        {"teams:read", "keys:read", "keys:write", "usage:read", "audit:read", "routing:read"}
    ),
    "auditor": frozenset(each for each in PERMISSIONS if each.endswith(":read")),
}

Verdict = Literal["allowed", "forbidden", "hidden"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: in the installation, in an organisation, or in one of its teams.

    Attributes:
        organisation_id: None: the installation as such.
        team_id: None: the organisation as such.
    """

    organisation_id: str | None = None
    team_id: str | None = None


INSTALLATION = Place()


@dataclass(frozen=True, slots=True)
class Administrator:
    """Somebody, or something, that may use the admin API.

    Attributes:
        actor: `token:<id>`, `person:<subject>` or `environment`.
        name: for people.
        organisation_id: the organisation that it is confined to; None: the whole installation.
        team_id: the team that it is confined to; None: no single one.
        scopes: permissions that it is narrowed to; None: all that the role has.
        valid_until: when a token of its ends; None: it does not, or it is no token.
    """

    actor: str
    name: str
    role: Role
    organisation_id: str | None = None
    team_id: str | None = None
    scopes: frozenset[str] | None = None
    valid_until: datetime | None = None

    @property
    def permissions(self) -> frozenset[Permission]:
        """What it may do, within its confinement."""
        of_role = OF_ROLE[self.role]
        if self.scopes is None:
            return of_role
        return frozenset(each for each in of_role if each in self.scopes)

    def covers(self, place: Place) -> bool:
        """Whether a place is within its confinement."""
        if self.team_id is not None:
            return place.team_id == self.team_id
        return self.organisation_id is None or place.organisation_id == self.organisation_id


def verdict(administrator: Administrator, permission: Permission, place: Place) -> Verdict:
    """Whether an administrator may do something somewhere.

    `forbidden` depends on the administrator alone, so that it tells nothing of the place.
    """
    if permission not in administrator.permissions:
        return "forbidden"
    return "allowed" if administrator.covers(place) else "hidden"


def may_grant(giver: Administrator, given: Administrator) -> bool:
    """Whether an administrator may make another: nobody gives more than they have, nor for
    longer."""
    place = Place(given.organisation_id, given.team_id)
    if giver.valid_until is not None and (
        given.valid_until is None or given.valid_until > giver.valid_until
    ):
        return False
    return given.permissions <= giver.permissions and giver.covers(place)
