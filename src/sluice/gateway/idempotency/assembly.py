"""Where the parts of idempotency are joined."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.billing.recorder import Recorder
from sluice.billing.redis_link import RedisLink
from sluice.gateway.idempotency.generation import Terms
from sluice.gateway.idempotency.keyed import IdempotencyConfig, KeyedAnswers
from sluice.gateway.idempotency.sweeper import Sweeper
from sluice.gateway.idempotency.tapes import Tapes
from sluice.gateway.meter import Meter
from sluice.gateway.metrics import Metrics
from sluice.gateway.settings import Config


@dataclass(slots=True)
class Idempotency:
    """What answers requests with a key, and what starts and stops with it."""

    keyed: KeyedAnswers
    sweeper: Sweeper

    async def start(self) -> None:
        """Begin to look for lost generations."""
        await self.sweeper.start()

    async def stop(self) -> None:
        """Let generations end; those of other processes are theirs."""
        await self.sweeper.stop()
        await self.keyed.stop()


def create_idempotency(
    config: Config, link: RedisLink, recorder: Recorder, meter: Meter, metrics: Metrics
) -> Idempotency:
    """What answers requests with a key."""
    given = config.idempotency
    tapes = Tapes(link, given.lease_seconds, given.retention_seconds)
    terms = Terms(
        given.grace_seconds,
        given.lease_seconds,
        given.max_bytes,
        stall_seconds=config.server.stalled_reader_seconds / 2,
    )
    settings = IdempotencyConfig(terms, given.redis_away)
    lease = given.lease_seconds
    sweeper = Sweeper(tapes, recorder, metrics.lost_generations.inc, lease / 5, lease)
    return Idempotency(KeyedAnswers(tapes, meter, settings, metrics.keyed), sweeper)
