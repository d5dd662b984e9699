"""Who may call a control-plane route: a team by its key, or an administrator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from litestar.connection import ASGIConnection

from sluice.gateway.auth import KeyRing, Principal, credential_of
from sluice.gateway.errors import GatewayError

Connection = ASGIConnection[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """An administrator (no principal), or a team's key."""

    principal: Principal | None

    @property
    def team_id(self) -> UUID | None:
        """The team that the caller is confined to; None for administrators."""
        return None if self.principal is None else UUID(self.principal.team_id)


class Access:
    """Authenticates control-plane calls."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def admin(self, connection: Connection) -> None:
        """Let administrators pass.

        Raises:
            GatewayError: 401 for no valid credential, 403 for a team's key.
        """
        if self.caller(connection).principal is not None:
            raise GatewayError.forbidden("This needs an admin key.")

    def caller(self, connection: Connection) -> Caller:
        """Whoever calls, if known.

        Raises:
            GatewayError: 401 for no valid credential.
        """
        credential = credential_of(connection.scope["headers"])
        if self._keys.is_admin(credential):
            return Caller(None)
        principal = self._keys.authenticate(credential)
        if principal is None:
            raise GatewayError.unauthenticated()
        return Caller(principal)
