"""Replicas with workers: who has announced itself joins, who has fallen silent leaves.

What operators drain is in Redis too, so that every gateway knows it, one that starts later
included. While Redis is away everything stays as it was.
"""

from __future__ import annotations

import asyncio

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.backends.replicas import LEASE_SECONDS, Heard, Replicas
from sluice.router.pool.membership import Event
from sluice.router.pool.pool import PoolBackend
from sluice.router.pool.roster import Replica

POLL_SECONDS = 0.25

#: A replica that its worker calls restarting has an engine that is gone.
_GONE = Event.UNREACHABLE

_log = structlog.get_logger("sluice.pool")


class Discovery:
    """Keeps one pool's roster in step with Redis."""

    def __init__(self, pool: PoolBackend, redis: Redis) -> None:
        """Args:
        pool: whose roster it is.
        redis: the general client.
        """
        self._pool = pool
        self._redis = redis
        self._announced = Replicas(redis.execute_command)
        self._clock = pool.clock
        self._in_touch_since: float | None = None
        self._drained: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, and go on looking."""
        await self.poll()
        self._task = asyncio.create_task(self._polling(), name="pool-discovery")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def drain(self, replica_id: str, drained: bool) -> None:
        """Tell all gateways that a replica is to be drained, or is not.

        Raises:
            RedisError: Redis is away; nothing has changed.
        """
        command = "SADD" if drained else "SREM"
        await self._redis.execute_command(command, self._drain_key, replica_id)
        others = self._drained - {replica_id}
        self._note_drained(others | {replica_id} if drained else others)

    async def poll(self) -> None:
        """Look once."""
        config = self._pool.config
        try:
            heard = await self._announced.live(config.name) if config.discover else []
            drained = await self._redis.execute_command("SMEMBERS", self._drain_key)
        except (RedisError, OSError, TimeoutError) as error:
            if self._in_touch_since is not None:
                _log.warning("announcements away", pool=config.name, error=type(error).__name__)
            self._in_touch_since = None
            return
        now = self._clock()
        if self._in_touch_since is None:
            self._in_touch_since = now
        for each in heard:
            self._announce(each, now)
        if now - self._in_touch_since > LEASE_SECONDS:
            await self._miss({each.announcement.id for each in heard}, now)
        self._note_drained(frozenset(name.decode() for name in drained))

    @property
    def _drain_key(self) -> str:
        return f"sluice:pool:{self._pool.config.name}:drained"

    async def _polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except Exception:  # noqa: BLE001 - whatever it is, the next look comes
                _log.exception("announcements could not be read")

    def _announce(self, heard: Heard, now: float) -> None:
        said, pool = heard.announcement, self._pool
        replica = pool.roster.get(said.id) or pool.join(said.id, said.url, said)
        replica.announcement = said
        if said.state == "draining":
            pool.roster.report(replica, Event.DRAIN_ASKED, now)
        elif said.state == "joining" and replica.member.takes_requests:
            pool.roster.report(replica, _GONE, now)

    async def _miss(self, present: set[str], now: float) -> None:
        """What the silence of those who were not heard means."""
        for replica in self._pool.roster:
            said = replica.announcement
            if said is None or replica.id in present:
                continue
            if replica.member.takes_requests:
                self._pool.roster.report(replica, Event.LEASE_LAPSED, now)
            silent = now - replica.member.since
            if silent > self._pool.config.health.forget and not self._pool.busy(replica):
                await self._pool.leave(replica)

    def _note_drained(self, drained: frozenset[str]) -> None:
        for replica in self._pool.roster:
            if replica.id in drained:
                self._pool.drain(replica.id)
            elif replica.id in self._drained and not _drains_itself(replica):
                self._pool.undrain(replica.id)
        self._drained = drained


def _drains_itself(replica: Replica) -> bool:
    """Whether a replica's own worker drains it, which no operator can take back."""
    said = replica.announcement
    return said is not None and said.state == "draining"
