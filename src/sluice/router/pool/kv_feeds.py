"""The feeds of a pool's replicas: one for each that is known."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog
import zmq

from sluice.router.pool.engine_caches import EngineCaches
from sluice.router.pool.kv_events import EventKind
from sluice.router.pool.kv_feed import USELESS_SECONDS, KvFeed
from sluice.router.pool.observer import PoolObserver
from sluice.router.pool.roster import Replica, Roster

#: Seconds between two looks at who is known.
_LOOK_SECONDS = 0.25

_log = structlog.get_logger("sluice.pool")


class KvFeeds:
    """Hears the replicas of one pool."""

    def __init__(
        self, pool: str, roster: Roster, caches: EngineCaches, observer: PoolObserver
    ) -> None:
        """Args:
        pool: its name.
        roster: its replicas.
        caches: learns what they say.
        observer: is told how much that is.
        """
        self._pool = pool
        self._roster = roster
        self._caches = caches
        self._observer = observer
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._feeds: dict[str, tuple[Replica, asyncio.Task[None]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to hear."""
        self._context = zmq.Context()
        self._look(self._context)
        self._looking = asyncio.create_task(self._look_on(self._context), name="kv-feeds")

    async def stop(self) -> None:
        """End it."""
        tasks = [task for _, task in self._feeds.values()]
        tasks += [self._looking] if self._looking is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def _look_on(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look(context)

    def _look(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        for name, (replica, task) in tuple(self._feeds.items()):
            if self._roster.get(name) is not replica:
                task.cancel()
                del self._feeds[name]
        for replica in self._roster:
            if replica.id not in self._feeds:
                feed = KvFeed(
                    context,
                    replica.id,
                    replica.inspector,
                    self._caches,
                    self._applied,
                    self._missed,
                )
                self._feeds[replica.id] = replica, asyncio.create_task(_kept(feed), name="kv-feed")

    def _applied(self, counts: Counter[EventKind]) -> None:
        self._observer.kv_events_applied(self._pool, counts)

    def _missed(self, healed: bool) -> None:
        self._observer.kv_events_missed(self._pool, healed)


async def _kept(feed: KvFeed) -> None:
    """A feed that fails for a reason of ours is begun again, and that is told."""
    while True:
        try:
            await feed.run()
        except Exception:  # noqa: BLE001 - whatever it is, the index goes on without events
            _log.exception("KV events could not be heard")
        await asyncio.sleep(USELESS_SECONDS)
