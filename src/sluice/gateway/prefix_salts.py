"""Salts that keep one team's prefix cache entries from serving, and so from telling, another.

vLLM mixes a request's `cache_salt` into the hash of its first cache block: prompts with different
salts share nothing, and the time to the first token tells a team only what it had cached itself.
A salt that others could guess would protect nothing, so it is an HMAC of the team's id under a
secret of the installation. The secret has to be the same on every gateway and after every
restart, or caches would be cold and split; it is `SLUICE_SALT_SECRET`, or else the one that the
database was given when its schema was made.
"""

from __future__ import annotations

import hashlib
import hmac

import asyncpg

from sluice.wire.request import Request, member


class PrefixSalts:
    """The salts of an installation."""

    def __init__(self, pool: asyncpg.Pool, given: str | None) -> None:
        """Args:
        pool: the database that has a secret where none is given.
        given: the secret.
        """
        self._pool = pool
        self._secret = b"" if given is None else given.encode()

    async def start(self) -> None:
        """Load the secret.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        if not self._secret:
            self._secret = await self._pool.fetchval(
                "SELECT value FROM installation_secrets WHERE name = 'cache_salt'"
            )

    def salt(self, team_id: str, isolated: bool, request: Request) -> str | None:
        """The salt of a request; None where its prefixes may be shared.

        A salt of the caller's own divides its team's cache further. It never goes upstream as it
        is: with another team's salt in it, it would open that team's cache.

        Raises:
            InvalidRequest: the request's own salt is no text.
        """
        own = member(request.members, "cache_salt", str)
        if own is None and not isolated:
            return None
        text = f"{team_id}\0{own or ''}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()
