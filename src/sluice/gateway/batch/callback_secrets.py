"""The secrets with which callbacks are signed: one a team, none of them stored.

A team's secret is an HMAC of its id and of a generation under a secret of the installation, which
is `SLUICE_CALLBACK_SECRET`, or else the one that the database was given when its schema was made.
Rotation is the next generation; for a while the one before signs as well, so that a receiver can
change over without missing anything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg

#: For how long the secret before a rotation goes on signing.
OVERLAP = timedelta(hours=24)

_ROTATE = """
INSERT INTO callback_secrets AS known (team_id, generation, overlap_until)
VALUES ($1, 1, $2)
ON CONFLICT (team_id) DO UPDATE SET
    generation = known.generation + 1, overlap_until = excluded.overlap_until
RETURNING generation
"""


class CallbackSecrets:
    """The signing secrets of an installation's teams."""

    def __init__(self, pool: asyncpg.Pool, given: str | None) -> None:
        """Args:
        pool: the database, with a secret where none is given.
        given: the installation's secret.
        """
        self._pool = pool
        self._secret = b"" if given is None else given.encode()

    async def start(self) -> None:
        """Load the installation's secret.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        if not self._secret:
            self._secret = await self._pool.fetchval(
                "SELECT value FROM installation_secrets WHERE name = 'callback_signing'"
            )

    async def current(self, team_id: UUID) -> str:
        """A team's secret, as receivers verify with it: `whsec_` and base64.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        return (await self.signing(team_id, datetime.now(UTC)))[0]

    async def signing(self, team_id: UUID, now: datetime) -> list[str]:
        """The secrets that sign now, the current one first.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        row = await self._pool.fetchrow(
            "SELECT generation, overlap_until FROM callback_secrets WHERE team_id = $1", team_id
        )
        if row is None:
            return [self._of(team_id, 0)]
        generations = [row["generation"]]
        if now < row["overlap_until"]:
            generations.append(row["generation"] - 1)
        return [self._of(team_id, generation) for generation in generations]

    async def rotate(self, team_id: UUID, now: datetime) -> str:
        """Make a team's next secret the current one; the one before signs along for `OVERLAP`.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be written.
        """
        generation = await self._pool.fetchval(_ROTATE, team_id, now + OVERLAP)
        return self._of(team_id, generation)

    def _of(self, team_id: UUID, generation: int) -> str:
        text = f"callback\0{team_id}\0{generation}".encode()
        digest = hmac.new(self._secret, text, hashlib.sha256).digest()
        return "whsec_" + base64.b64encode(digest).decode()
