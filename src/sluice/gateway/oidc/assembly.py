"""The parts of people's sign-in, joined as a configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from redis.asyncio import Redis

from sluice.gateway.egress import Egress, EgressPolicy
from sluice.gateway.oidc.authentication import Authentication
from sluice.gateway.oidc.cookies import Cookies
from sluice.gateway.oidc.login import Client, Login
from sluice.gateway.oidc.people import Grant, People
from sluice.gateway.oidc.provider import IdentityProvider
from sluice.gateway.oidc.routes import auth_routes
from sluice.gateway.oidc.sessions import Sessions


@dataclass(frozen=True, slots=True)
class SignIn:
    """What the application is given for people.

    Attributes:
        routes: below `/auth`.
        authentication: knows people by what their requests bring.
    """

    routes: Sequence[Any]
    authentication: Authentication
    _redis: Redis

    async def close(self) -> None:
        """Release connections."""
        await self._redis.aclose()


def sign_in(
    client: Client,
    issuer: str,
    grants: Sequence[Grant],
    session_seconds: int,
    egress: EgressPolicy,
    pool: asyncpg.Pool,
    redis: Redis,
) -> SignIn:
    """Join the parts.

    Args:
        client: what we are to the provider.
        issuer: the provider.
        grants: what its people are here.
        session_seconds: how long a session in a browser lasts.
        egress: what the server may fetch; the issuer's own host is allowed on top.
        pool: for the organisations and teams that grants name.
        redis: where sessions are.
    """
    provider = IdentityProvider(issuer, Egress(to_the_issuer(egress, issuer)))
    sessions = Sessions(redis, session_seconds)
    people = People(pool, grants)
    cookies = Cookies(client.public_url.startswith("https://"))
    login = Login(client, provider, sessions, people)
    authentication = Authentication(client, provider, sessions, people, cookies)
    return SignIn(
        auth_routes(client, provider, login, authentication, sessions, cookies),
        authentication,
        redis,
    )


def to_the_issuer(policy: EgressPolicy, issuer: str) -> EgressPolicy:
    """The operator has named the issuer, which may well be in the company's own network."""
    parts = urlsplit(issuer)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return replace(
        policy,
        allow_hosts=(*policy.allow_hosts, parts.hostname or ""),
        only_hosts=(),
        ports=policy.ports | {port},
        plain_http=parts.scheme == "http",
    )
