"""People's requests to the control plane: by a token of the identity provider's, or a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from sluice.gateway.auth import credential_of
from sluice.gateway.errors import GatewayError
from sluice.gateway.oidc.cookies import Cookies, Headers, is_own_doing
from sluice.gateway.oidc.login import Client
from sluice.gateway.oidc.people import People, Person, person
from sluice.gateway.oidc.provider import IdentityProvider, ProviderUnavailable
from sluice.gateway.oidc.sessions import Sessions
from sluice.gateway.oidc.tokens import Expected, TokenRefused, looks_like_token
from sluice.gateway.tenancy.roles import Administrator
from sluice.wire.errors import ErrorDetail


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Somebody who is there.

    Attributes:
        administrator: what they are here; None: nothing.
        session_id: of their browser's session; None with a token.
    """

    person: Person
    administrator: Administrator | None
    session_id: str | None


class Authentication:
    """Finds out who is there."""

    def __init__(
        self,
        client: Client,
        provider: IdentityProvider,
        sessions: Sessions,
        people: People,
        cookies: Cookies,
    ) -> None:
        self._client = client
        self._provider = provider
        self._sessions = sessions
        self._people = people
        self._cookies = cookies
        self._expected = Expected(
            provider.issuer, client.parties | set(client.audiences), client.parties
        )

    async def administrator(self, connection: Any) -> Administrator | None:
        """The administrator behind a connection, where it is a person; see `Authenticator`.

        Raises:
            GatewayError: as `find` does; 403 for a person without a role.
        """
        somebody = await self.find(connection.scope["method"], connection.scope["headers"])
        if somebody is None:
            return None
        if somebody.administrator is None:
            raise GatewayError.forbidden(
                "You are signed in, but have no role here.", code="no_role"
            )
        return somebody.administrator

    async def find(self, method: str, headers: Headers) -> SignedIn | None:
        """Who makes a request; None for everybody who is no person.

        Raises:
            GatewayError: 401 for a token that is not believed, 403 for a request that another
                site's page had a browser make, 503 where who it is can't be found out.
        """
        credential = credential_of(headers)
        try:
            if credential is None:
                return await self._of_session(method, headers)
            if looks_like_token(credential):
                return await self._of_token(credential)
        except ProviderUnavailable as error:
            raise _unavailable(str(error)) from None
        except RedisError:
            raise _unavailable("sessions can't be looked up") from None
        return None

    async def _of_token(self, token: str) -> SignedIn:
        try:
            claims = await self._provider.claims(token, self._expected)
        except TokenRefused as refusal:
            error = GatewayError.unauthenticated()
            challenge = f'Bearer error="invalid_token", error_description="{refusal}"'
            detail = ErrorDetail(
                f"The bearer token was refused: {refusal}.",
                error.detail.type,
                None,
                error.detail.code,
            )
            raise GatewayError(
                error.status, detail, {**error.headers, "www-authenticate": challenge}
            ) from None
        somebody = person(claims, self._people.grants)
        return SignedIn(somebody, await self._people.administrator(somebody), None)

    async def _of_session(self, method: str, headers: Headers) -> SignedIn | None:
        session_id = self._cookies.read(headers, self._cookies.session)
        if session_id is None:
            return None
        somebody = await self._sessions.person(session_id)
        if somebody is None:
            return None
        if not is_own_doing(method, dict(headers), self._client.origin):
            raise GatewayError.forbidden(
                "A request that changes something must come from this site's own pages.",
                code="cross_site_request",
            )
        return SignedIn(somebody, await self._people.administrator(somebody), session_id)


def _unavailable(text: str) -> GatewayError:
    detail = ErrorDetail(
        f"You can't be recognised now: {text}.",
        "service_unavailable_error",
        code="service_unavailable",
    )
    return GatewayError(503, detail, {"retry-after": "5"})
