"""How the loop found each alias, in Postgres, where gateways read it for their metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import asyncpg
import msgspec

from sluice.gateway.database_poll import DatabasePoll

#: Seconds between two looks of a gateway.
POLL_SECONDS = 10.0


class AliasHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How an alias was last found.

    Attributes:
        time: when, UTC.
        trained_at: when a candidate was last made; None: never.
        labels: requests with outcomes of both tiers.
        score_psi: how far the scores are from those at the model's birth; None: the rule scores,
            or there was too little to see.
        outcome_drop: by how much answers are surely worse than they were then; None likewise.
    """

    alias: str
    time: datetime
    trained_at: datetime | None
    labels: int
    score_psi: float | None
    outcome_drop: float | None


class HealthRecords:
    """Keeps it."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def all(self) -> list[AliasHealth]:
        """Of every alias that was ever looked at."""
        rows = await self._pool.fetch("SELECT * FROM router_health ORDER BY alias")
        return [AliasHealth(**row) for row in rows]

    async def find(self, alias: str) -> AliasHealth | None:
        """Of one alias."""
        row = await self._pool.fetchrow("SELECT * FROM router_health WHERE alias = $1", alias)
        return None if row is None else AliasHealth(**row)

    async def put(self, health: AliasHealth) -> None:
        """Replace what was known of an alias."""
        await self._pool.execute(
            "INSERT INTO router_health (alias, time, trained_at, labels, score_psi, outcome_drop)"
            " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (alias) DO UPDATE SET"
            " time = excluded.time, trained_at = excluded.trained_at, labels = excluded.labels,"
            " score_psi = excluded.score_psi, outcome_drop = excluded.outcome_drop",
            health.alias,
            health.time,
            health.trained_at,
            health.labels,
            health.score_psi,
            health.outcome_drop,
        )


class HealthObserver(Protocol):
    """Shows it."""

    def alias_found(self, health: AliasHealth) -> None:
        """An alias was found to be so."""
        ...


def health_poll(
    records: HealthRecords, observer: HealthObserver, poll_seconds: float = POLL_SECONDS
) -> DatabasePoll:
    """What keeps an observer as the loop finds things."""

    async def look() -> None:
        for health in await records.all():
            observer.alias_found(health)

    return DatabasePoll("router health", look, poll_seconds)
