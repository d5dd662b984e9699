"""What the loop reads of routed requests, and of what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from sluice.gateway.learning.examples import Labelled, Opinion
from sluice.router.complexity.features import VERSION

#: Requests of an alias that are trained on at most, the newest ones.
MOST_LABELLED = 20_000

#: Requests by which drift is told, the newest ones.
RECENT = 1_000

#: An alias without a request for so long is left alone.
ALIVE = timedelta(days=7)

#: Between two requests of a conversation that ask the same lies no more than this.
AGAIN_WITHIN = timedelta(minutes=10)

#: Features of another release's version can't be read; requests that have them are passed over.
_VERSION = bytes((VERSION,))

# The strong tier is the one that the strong model answers in; a team's own document may give its
# name to another one.
_LABELLED = """
WITH labelled AS (
    SELECT d.request_id, d.time, d.features, d.conversation, d.tier_used, d.strong_model,
        d.model_used = d.strong_model AS by_strong,
        jsonb_agg(jsonb_build_object('source', l.source, 'score', l.score,
            'strong', l.strong_score, 'weak', l.weak_score)) AS opinions
    FROM route_decisions d JOIN route_labels l USING (request_id, team_id)
    WHERE d.alias = $1 AND d.time > $2 AND substring(d.features FOR 1) = $4
    GROUP BY d.request_id, d.time, d.features, d.conversation, d.tier_used, d.model_used,
        d.strong_model
    ORDER BY d.time DESC LIMIT $3
)
SELECT request_id, time, features, conversation, opinions,
    by_strong OR (strong_model, tier_used) IN (
        SELECT strong_model, tier_used FROM labelled WHERE by_strong) AS strong
FROM labelled ORDER BY time
"""

# As `examples.rows_of` pairs them, without moving them out of the database.
_PAIRS = """
SELECT count(*) FROM (
    SELECT 1 FROM route_decisions d JOIN route_labels l USING (request_id, team_id)
    WHERE d.alias = $1 AND d.time > $2 AND substring(d.features FOR 1) = $3
    GROUP BY md5(d.features)
    HAVING bool_or(l.strong_score IS NOT NULL) OR
        (bool_or(d.model_used = d.strong_model) AND bool_or(d.model_used <> d.strong_model))
) AS paired
"""

_FOLLOWED = """
SELECT request_id, team_id, features, next_features FROM (
    SELECT request_id, team_id, time, features,
        lead(features) OVER each_one AS next_features, lead(time) OVER each_one AS next_time
    FROM route_decisions
    WHERE time > $1::timestamptz - $2::interval AND substring(features FOR 1) = $3
    WINDOW each_one AS (PARTITION BY team_id, alias, conversation ORDER BY time, request_id)
) AS asked
WHERE next_time > $1 AND next_time - time <= $2
"""

_opinions = msgspec.json.Decoder(list[Opinion])


@dataclass(frozen=True, slots=True)
class Followed:
    """A request that another of its conversation followed soon."""

    request_id: UUID
    team_id: UUID
    features: bytes
    next_features: bytes


class Traffic:
    """Reads decisions and labels."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def now(self) -> datetime:
        """The database's time."""
        time: datetime = await self._pool.fetchval("SELECT now()")
        return time

    async def aliases(self) -> list[str]:
        """The aliases that are asked for."""
        rows = await self._pool.fetch(
            "SELECT DISTINCT alias FROM routing_daily WHERE date > now() - $1::interval", ALIVE
        )
        return [row["alias"] for row in rows]

    async def labelled(self, alias: str, since: datetime) -> list[Labelled]:
        """Requests of which anything is known, the oldest first; of many the newest."""
        rows = await self._pool.fetch(_LABELLED, alias, since, MOST_LABELLED, _VERSION)
        return [
            Labelled(
                row["request_id"],
                row["time"],
                row["features"],
                row["strong"],
                row["conversation"],
                _opinions.decode(row["opinions"]),
            )
            for row in rows
        ]

    async def pairs(self, alias: str, since: datetime) -> int:
        """How many different requests have outcomes of both tiers."""
        count: int = await self._pool.fetchval(_PAIRS, alias, since, _VERSION)
        return count

    async def recent(self, alias: str, since: datetime | None = None) -> list[bytes]:
        """Features of the newest requests."""
        rows: Sequence[asyncpg.Record] = await self._pool.fetch(
            "SELECT features FROM route_decisions WHERE alias = $1"
            " AND ($2::timestamptz IS NULL OR time > $2) AND substring(features FOR 1) = $4"
            " ORDER BY time DESC LIMIT $3",
            alias,
            since,
            RECENT,
            _VERSION,
        )
        return [row["features"] for row in rows]

    async def followed(self, since: datetime) -> list[Followed]:
        """Requests that were followed by another one since then."""
        rows = await self._pool.fetch(_FOLLOWED, since, AGAIN_WITHIN, _VERSION)
        return [Followed(**row) for row in rows]

    async def forget(self, before: datetime) -> None:
        """Labels that are older go, with the prompts that were kept."""
        await self._pool.execute("DELETE FROM route_labels WHERE time < $1", before)
        await self._pool.execute("DELETE FROM comparison_spend WHERE day < $1::timestamptz", before)
