"""Looks after the replicas of a pool: asks them how they are, and reads their metrics.

A look every `interval`, whether or not the one before has ended, so that a hang shows soon.
`/health` speaks for the server's process only; that the engine moves is shown by tokens. Those of
requests will do. One is asked for where requests are out and none has come since the last look,
after a look that ended badly, and of an idle replica now and then. A late answer is no sign of a
hang if anything else was heard meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from sluice.backends.vllm import Finding
from sluice.router.pool.engine_metrics import read_metrics
from sluice.router.pool.membership import Event
from sluice.router.pool.pool import PoolBackend
from sluice.router.pool.roster import Replica

_EVENTS: dict[Finding, Event] = {
    "ok": Event.PROBE_OK,
    "failed": Event.PROBE_FAILED,
    "slow": Event.PROBE_SLOW,
    "unreachable": Event.UNREACHABLE,
}

_log = structlog.get_logger("sluice.pool")


class HealthMonitor:
    """Watches one pool."""

    def __init__(
        self,
        pool: PoolBackend,
        credential: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Args:
        pool: whose replicas are watched.
        credential: the key that replicas want, if they want one.
        """
        self._pool = pool
        self._checks = pool.config.health
        self._credential = credential
        self._clock = pool.clock
        self._running: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look at every replica once, and go on doing so."""
        looks = [self.look(replica) for replica in self._pool.roster]
        await asyncio.gather(*looks)
        self._watch = asyncio.create_task(self._watching(), name="pool-health")

    async def stop(self) -> None:
        """Look no more."""
        tasks = [*self._running, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self, replica: Replica) -> None:
        """Ask one replica how it is, and take in the answer.

        One that is out stays out until it answers well; that it still does not is no news.
        """
        began = self._clock()
        finding = await self._ask(replica, began)
        if finding is None or self._pool.roster.get(replica.id) is not replica:
            return
        now = self._clock()
        if finding == "ok":
            replica.heard = now
        elif not replica.member.takes_requests or (finding == "slow" and replica.heard > began):
            return
        self._pool.roster.report(replica, _EVENTS[finding], now)
        self._pool.act(now)

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(self._checks.interval)
            now = self._clock()
            for replica in self._pool.roster:
                self._begin(self.look(replica))
                if now - replica.scraped >= self._checks.scrape:
                    replica.scraped = now
                    self._begin(self._scrape(replica))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(_guarded(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _ask(self, replica: Replica, now: float) -> Finding | None:
        """What is found; None where it is no use to ask, or where all that was to be seen is that
        the server's process is there."""
        member, seconds = replica.member, self._checks.timeout
        said = replica.announcement
        if now < member.until or (said is not None and said.state == "joining"):
            return None
        finding = await replica.inspector.health(seconds)
        if finding != "ok":
            return finding
        if not member.takes_requests:
            await self._scrape(replica)
        elif not self._wants_probe(replica, now):
            return None
        replica.probed = now
        left = max(0.1, seconds - (self._clock() - now))
        return await replica.inspector.probe(left, self._credential())

    def _wants_probe(self, replica: Replica, now: float) -> bool:
        if replica.member.bad_probes:
            return True
        if self._pool.busy(replica):
            return now - replica.heard > self._checks.interval
        return now - max(replica.probed, replica.heard) > self._checks.probe_idle

    async def _scrape(self, replica: Replica) -> None:
        text = await replica.inspector.metrics(self._checks.timeout)
        if text is not None:
            replica.readings = read_metrics(text)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """A look that fails for a reason of ours must not end the watch, and is told."""
    try:
        await work
    except Exception:  # noqa: BLE001 - whatever it is, the next look comes
        _log.exception("replica could not be looked at")
