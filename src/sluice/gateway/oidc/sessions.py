"""Sessions of people in browsers, and logins that are under way; in Redis, by hashes only.

Whoever reads Redis finds no session's id there, and so can take over none.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TypeVar

import msgspec
from redis.asyncio import Redis

from sluice.gateway.oidc.people import Person

#: How long somebody may take to sign in, in seconds.
LOGIN_SECONDS = 600

_SESSION, _LOGIN = "sluice:session:", "sluice:login:"

T = TypeVar("T")


class LoginAttempt(msgspec.Struct, frozen=True):
    """A login that was begun.

    Attributes:
        nonce: that the ID token must hold.
        verifier: of the code challenge.
        browser: hash of the cookie of the browser that began it.
        return_to: the path that it goes on to.
    """

    nonce: str
    verifier: str
    browser: str
    return_to: str


class Sessions:
    """See the module. Everything may raise `redis.exceptions.RedisError`."""

    def __init__(self, redis: Redis, seconds: int) -> None:
        self._redis = redis
        self.seconds = seconds

    async def open(self, somebody: Person) -> str:
        """A new session; gives its id, which is the browser's alone."""
        session_id = secrets.token_urlsafe(32)
        await self._redis.set(_key(_SESSION, session_id), _encode(somebody), ex=self.seconds)
        return session_id

    async def person(self, session_id: str) -> Person | None:
        """Whose session it is; None where it is over."""
        return _decode(await self._redis.get(_key(_SESSION, session_id)), Person)

    async def close(self, session_id: str) -> None:
        """End a session, everywhere and at once."""
        await self._redis.delete(_key(_SESSION, session_id))

    async def begin_login(self, state: str, attempt: LoginAttempt) -> None:
        """Note a login that was begun."""
        await self._redis.set(_key(_LOGIN, state), _encode(attempt), ex=LOGIN_SECONDS)

    async def take_login(self, state: str) -> LoginAttempt | None:
        """The login that was begun with a state; it can be taken once."""
        return _decode(await self._redis.getdel(_key(_LOGIN, state)), LoginAttempt)


def secret_hash(secret: str) -> str:
    """SHA-256 of a secret of ours; it has 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(prefix: str, secret: str) -> str:
    return prefix + secret_hash(secret)


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def _decode(text: bytes | str | None, kind: type[T]) -> T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)
