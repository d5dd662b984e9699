"""`sluice login`: authorization code with PKCE, answered on a port of the person's own machine.

As RFC 8252 has it for native programs: the provider's page opens in a browser, and sends it back
to a loopback address that only this program listens on.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import jwt
from aiohttp import web

from sluice.gateway.oidc.login import challenge
from sluice.gateway.oidc.token_file import SavedToken

#: How long somebody may take to sign in, in seconds.
LOGIN_SECONDS = 300.0

_DONE = "You are signed in. You can close this page."
_NOT_DONE = "You could not be signed in. The terminal says why."


class LoginError(Exception):
    """Nobody was signed in; the message says why."""


@dataclass(frozen=True, slots=True)
class _Answer:
    state: str
    code: str
    error: str


async def log_in(gateway: str, show: Callable[[str], object]) -> SavedToken:
    """Sign somebody in for a gateway's admin API.

    Args:
        gateway: its address.
        show: takes the address of the provider's page, for the person to open.

    Raises:
        LoginError: with what went wrong.
    """
    timeout = aiohttp.ClientTimeout(total=30)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            asyncio.timeout(LOGIN_SECONDS),
        ):
            config = await _json(session, f"{gateway}/auth/config", "sign-in is not configured")
            metadata = await _json(
                session,
                config["issuer"].rstrip("/") + "/.well-known/openid-configuration",
                "the identity provider has no metadata",
            )
            if metadata.get("issuer") != config["issuer"]:
                raise LoginError("the identity provider's metadata is another issuer's")
            return await _flow(session, config, metadata, show)
    except TimeoutError:
        raise LoginError("nobody signed in in time") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LoginError(f"can't reach {gateway} or its identity provider: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise LoginError("the gateway or its identity provider answered with nonsense") from None


async def _flow(
    session: aiohttp.ClientSession,
    config: dict[str, Any],
    metadata: dict[str, Any],
    show: Callable[[str], object],
) -> SavedToken:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    async with _Callback() as callback:
        query = {
            "response_type": "code",
            "client_id": config["client_id"],
            "redirect_uri": callback.url,
            "scope": " ".join(config["scopes"]),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
        }
        page = metadata["authorization_endpoint"]
        show(page + ("&" if urlsplit(page).query else "?") + urlencode(query))
        answer = await callback.answer(state)
        redirect_uri = callback.url
    if answer.error or not answer.code:
        raise LoginError("the identity provider did not sign you in")
    form = {
        "grant_type": "authorization_code",
        "code": answer.code,
        "redirect_uri": redirect_uri,
        "client_id": config["client_id"],
        "code_verifier": verifier,
    }
    async with session.post(metadata["token_endpoint"], data=form) as response:
        if response.status != 200:
            raise LoginError("the identity provider refused the login")
        token = (await response.json(content_type=None))["id_token"]
    return _checked(token, nonce)


def _checked(token: str, nonce: str) -> SavedToken:
    """The token came from the provider itself; the gateway checks its signature at each use."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        raise LoginError("the identity provider's token is malformed") from None
    if claims.get("nonce") != nonce:
        raise LoginError("the identity provider's token belongs to another login")
    return SavedToken(token, float(claims["exp"]))


class _Callback:
    """Listens on a free loopback port for the browser that comes back."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[_Answer] = asyncio.Queue()
        app = web.Application()
        app.router.add_get("/callback", self._arrived)
        self._runner = web.AppRunner(app)
        self.url = ""

    async def __aenter__(self) -> _Callback:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def answer(self, state: str) -> _Answer:
        """The first answer to this login; others that arrive are somebody else's."""
        while True:
            answer = await self._answers.get()
            if hmac.compare_digest(answer.state.encode(), state.encode()):
                return answer

    async def _arrived(self, request: web.Request) -> web.Response:
        query = request.query
        answer = _Answer(query.get("state", ""), query.get("code", ""), query.get("error", ""))
        self._answers.put_nowait(answer)
        return web.Response(text=_NOT_DONE if answer.error else _DONE)


async def _json(session: aiohttp.ClientSession, url: str, otherwise: str) -> dict[str, Any]:
    async with session.get(url) as response:
        if response.status != 200:
            raise LoginError(otherwise)
        value: dict[str, Any] = await response.json(content_type=None)
        return value
