"""`/auth`: people sign in and out, and see who they are.

Not in the API's description: the routes are there only where a provider is configured.
"""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from redis.exceptions import RedisError

from sluice.gateway.errors import GatewayError
from sluice.gateway.oidc.authentication import Authentication, SignedIn
from sluice.gateway.oidc.cookies import Cookies
from sluice.gateway.oidc.login import Client, Login, LoginFailed, local_path
from sluice.gateway.oidc.provider import IdentityProvider, ProviderUnavailable
from sluice.gateway.oidc.sessions import LOGIN_SECONDS, Sessions
from sluice.wire.errors import ErrorDetail

AnyRequest = Request[Any, Any, Any]


def auth_routes(
    client: Client,
    provider: IdentityProvider,
    login: Login,
    authentication: Authentication,
    sessions: Sessions,
    cookies: Cookies,
) -> list[HTTPRouteHandler]:
    """Login, callback, logout, and who am I."""
    return [
        *_login_routes(client, provider, login, sessions, cookies),
        *_session_routes(authentication, sessions, cookies),
    ]


def _login_routes(
    client: Client, provider: IdentityProvider, login: Login, sessions: Sessions, cookies: Cookies
) -> list[HTTPRouteHandler]:

    @get("/auth/config", include_in_schema=False)
    async def config() -> dict[str, Any]:
        return {
            "issuer": provider.issuer,
            "client_id": client.cli_id or client.id,
            "scopes": list(client.scopes),
        }

    @get("/auth/login", include_in_schema=False)
    async def begin(return_to: str = "/auth/session") -> Response[None]:
        try:
            begun = await login.begin(return_to)
        except ProviderUnavailable as error:
            raise _unavailable(str(error)) from None
        except RedisError:
            raise _unavailable("logins can't be noted") from None
        cookie = cookies.set(cookies.login, begun.browser, LOGIN_SECONDS)
        return _redirect(begun.url, [cookie])

    @get("/auth/callback", include_in_schema=False)
    async def callback(request: AnyRequest) -> Response[None]:
        given = request.query_params
        state, code = given.get("state", ""), given.get("code", "")
        if given.get("error") or not state or not code:
            raise _refused("the identity provider did not sign you in")
        browser = cookies.read(request.scope["headers"], cookies.login)
        try:
            somebody, return_to = await login.complete(state, code, browser, given.get("iss"))
            session_id = await sessions.open(somebody)
        except LoginFailed as failure:
            raise _refused(str(failure)) from None
        except ProviderUnavailable as failure:
            raise _unavailable(str(failure)) from None
        except RedisError:
            raise _unavailable("sessions can't be kept") from None
        return _redirect(
            local_path(return_to),
            [
                cookies.set(cookies.session, session_id, sessions.seconds),
                cookies.set(cookies.login, "", 0),
            ],
        )

    return [config, begin, callback]


def _session_routes(
    authentication: Authentication, sessions: Sessions, cookies: Cookies
) -> list[HTTPRouteHandler]:
    async def who(request: AnyRequest) -> SignedIn | None:
        return await authentication.find(request.scope["method"], request.scope["headers"])

    @post("/auth/logout", include_in_schema=False, status_code=200)
    async def logout(request: AnyRequest) -> Response[dict[str, Any]]:
        somebody = await who(request)
        if somebody is not None and somebody.session_id is not None:
            try:
                await sessions.close(somebody.session_id)
            except RedisError:
                raise _unavailable("the session can't be ended") from None
        gone = cookies.set(cookies.session, "", 0)
        return Response({"signed_in": False}, media_type=MediaType.JSON, cookies=[gone])

    @get("/auth/session", include_in_schema=False)
    async def session(request: AnyRequest) -> dict[str, Any]:
        somebody = await who(request)
        if somebody is None:
            raise GatewayError.unauthenticated()
        here = somebody.administrator
        return {
            "actor": f"person:{somebody.person.subject}",
            "name": somebody.person.name,
            "role": here and here.role,
            "organisation_id": here and here.organisation_id,
            "team_id": here and here.team_id,
        }

    return [logout, session]


def _redirect(url: str, cookies: list[Cookie]) -> Response[None]:
    return Response(None, status_code=303, headers={"location": url}, cookies=cookies)


def _refused(text: str) -> GatewayError:
    detail = ErrorDetail(
        f"You could not be signed in: {text}.", "authentication_error", None, "login_failed"
    )
    return GatewayError(401, detail)


def _unavailable(text: str) -> GatewayError:
    detail = ErrorDetail(
        f"You can't be signed in now: {text}.",
        "service_unavailable_error",
        code="service_unavailable",
    )
    return GatewayError(503, detail, {"retry-after": "5"})
