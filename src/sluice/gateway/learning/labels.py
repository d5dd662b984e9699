"""Labels in Postgres: what is known of how good answers were, one a request and source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from sluice.billing.ledger import storable
from sluice.gateway.tenancy.refusals import Conflict, Missing

Signal = Literal["truncated", "schema", "re_asked"]

#: By how much the time in a request's id and the time of its record may differ.
_SKEW = timedelta(hours=1)

_V7 = 7

#: Labels that are kept of one request: callers name the sources of their feedback as they like.
MOST_OF_A_REQUEST = 32

_FEEDBACK = """
INSERT INTO route_labels (request_id, source, team_id, score)
SELECT request_id, $3, team_id, $4 FROM usage_records
WHERE request_id = $1 AND team_id = $2 AND time BETWEEN $5 AND $6 AND $7 > (
    SELECT count(*) FROM route_labels WHERE request_id = $1 AND source <> $3)
ON CONFLICT (request_id, source) DO UPDATE SET score = excluded.score, time = now()
RETURNING request_id, source, score, time
"""

_LABELS = "SELECT count(*) FROM route_labels WHERE request_id = $1 AND team_id = $2"

_SIGNAL = """
INSERT INTO route_labels (request_id, source, team_id, score) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
"""

_COMPARED = """
INSERT INTO route_labels (request_id, source, team_id, strong_score, weak_score, prompt)
VALUES ($1, 'judge', $2, $3, $4, $5)
ON CONFLICT DO NOTHING
"""


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller said of an answer, as it is kept.

    Attributes:
        source: who says so, as the caller names them.
        score: 0 (useless) to 1 (as good as can be).
        time: when it was last said, UTC.
    """

    request_id: UUID
    source: str
    score: float
    time: datetime


class Labels:
    """Keeps labels."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def feedback(
        self, team_id: UUID, request_id: UUID, source: str, score: float
    ) -> Feedback:
        """Keep what a caller says; what the same source said before is replaced.

        Raises:
            Missing: the team has no such request, or it has not been recorded yet.
            Conflict: too many others have had their say on it.
        """
        made = made_at(request_id)
        row = None
        if made is not None:
            row = await self._pool.fetchrow(
                _FEEDBACK,
                request_id,
                team_id,
                f"feedback:{source}",
                score,
                made - _SKEW,
                made + _SKEW,
                MOST_OF_A_REQUEST,
            )
        if row is None:
            if await self._pool.fetchval(_LABELS, request_id, team_id) >= MOST_OF_A_REQUEST:
                raise Conflict(f"`{request_id}` has feedback of too many sources", "source")
            raise Missing(f"there is no request `{request_id}`", "request_id")
        return Feedback(
            request_id=row["request_id"], source=source, score=row["score"], time=row["time"]
        )

    async def signal(self, team_id: UUID, request_id: UUID, signal: Signal, score: float) -> None:
        """Keep what an answer itself showed."""
        await self._pool.execute(_SIGNAL, request_id, f"signal:{signal}", team_id, score)

    async def compared(
        self,
        team_id: UUID,
        request_id: UUID,
        strong_score: float,
        weak_score: float,
        prompt: str | None,
    ) -> None:
        """Keep a judge's opinion of both tiers' answers.

        Args:
            team_id: whose request it was.
            request_id: of the request that was served.
            strong_score: of the strong tier's answer.
            weak_score: of the weak tier's.
            prompt: its text, where the team keeps prompts.
        """
        kept = None if prompt is None else storable(prompt)
        await self._pool.execute(_COMPARED, request_id, team_id, strong_score, weak_score, kept)


def made_at(request_id: UUID) -> datetime | None:
    """When an id of ours was made; None: it is none, ours are UUIDv7."""
    if request_id.version != _V7:
        return None
    try:
        return datetime.fromtimestamp((request_id.int >> 80) / 1000, UTC)
    except (OverflowError, ValueError):
        return None
