"""Who may call a control-plane route: a team by its key, or an administrator.

How administrators are known is a list of authenticators: admin tokens are one, logins of people
another. The first that knows the caller decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from litestar.connection import ASGIConnection

from sluice.gateway.auth import KeyRing, Principal, TokenRing, credential_of
from sluice.gateway.errors import GatewayError
from sluice.gateway.tenancy.roles import Administrator, Permission

Connection = ASGIConnection[Any, Any, Any, Any]

#: Gives the administrator that calls, or None if it knows none; may raise GatewayError where a
#: credential is its own and is not valid.
Authenticator = Callable[[Connection], Awaitable[Administrator | None]]


@dataclass(frozen=True, slots=True)
class Caller:
    """A team's key, or an administrator: one of both is there."""

    principal: Principal | None
    administrator: Administrator | None = None


class Access:
    """Authenticates control-plane calls."""

    def __init__(self, keys: KeyRing, authenticators: Sequence[Authenticator] = ()) -> None:
        self._keys = keys
        self._authenticators = tuple(authenticators)

    async def administrator(self, connection: Connection) -> Administrator:
        """The administrator that calls.

        Raises:
            GatewayError: 401 for no valid credential, 403 for a team's key.
        """
        administrator = (await self.identify(connection)).administrator
        if administrator is None:
            raise GatewayError.forbidden("This needs an administrator's token.")
        return administrator

    async def principal(self, connection: Connection, what: str) -> Principal:
        """The team's key that calls for what belongs to teams.

        Raises:
            GatewayError: 401 for no valid credential, 403 for an administrator.
        """
        principal = (await self.identify(connection)).principal
        if principal is None:
            raise GatewayError.forbidden(f"{what} belong to teams; use a team's key.")
        return principal

    async def identify(self, connection: Connection) -> Caller:
        """Whoever calls, if known.

        Raises:
            GatewayError: 401 for no valid credential.
        """
        for authenticate in self._authenticators:
            administrator = await authenticate(connection)
            if administrator is not None:
                return Caller(None, administrator)
        principal = self._keys.authenticate(credential_of(connection.scope["headers"]))
        if principal is None:
            raise GatewayError.unauthenticated()
        return Caller(principal)


def by_token(tokens: TokenRing) -> Authenticator:
    """Knows administrators by their tokens."""

    async def authenticate(connection: Connection) -> Administrator | None:
        return tokens.authenticate(credential_of(connection.scope["headers"]))

    return authenticate


def not_permitted(permission: Permission) -> GatewayError:
    """The administrator has not got a permission."""
    return GatewayError.forbidden(f"This needs the permission `{permission}`.")


def confines(administrator: Administrator) -> tuple[UUID | None, UUID | None]:
    """The organisation and the team that an administrator's lists are limited to."""
    organisation_id, team_id = administrator.organisation_id, administrator.team_id
    return (
        None if organisation_id is None else UUID(organisation_id),
        None if team_id is None else UUID(team_id),
    )
