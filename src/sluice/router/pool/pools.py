"""All pools of one gateway process: what runs beside them, and what operators may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from redis.asyncio import Redis

from sluice.router.pool.discovery import Discovery
from sluice.router.pool.health import HealthMonitor
from sluice.router.pool.hints import HintExchange
from sluice.router.pool.kv_feeds import KvFeeds
from sluice.router.pool.pool import PoolBackend
from sluice.router.pool.snapshot import PoolSnapshot

#: Seconds between two beats, at which pools look at what passes with time; and the beats between
#: two times that they are seen by their observer.
TICK_SECONDS = 0.05
OBSERVE_BEATS = 20


class Pools:
    """The pools, by name."""

    def __init__(
        self,
        pools: Mapping[str, PoolBackend],
        redis: Redis | None,
        credential: Callable[[str], str | None] = lambda pool: None,
    ) -> None:
        """Args:
        pools: by name; whoever made them closes them.
        redis: the general client, closed with `stop`; None: this gateway is alone.
        credential: the key that a pool's replicas want, if they want one.
        """
        self._pools = pools
        self._redis = redis
        self._monitors = [
            HealthMonitor(pool, lambda name=name: credential(name))  # type: ignore[misc]
            for name, pool in pools.items()
        ]
        self._feeds = [
            KvFeeds(name, pool.roster, pool.caches, pool.observer)
            for name, pool in pools.items()
            if pool.caches is not None
        ]
        self._discoveries: dict[str, Discovery] = {}
        self._exchange: HintExchange | None = None
        if redis is not None and pools:
            self._discoveries = {name: Discovery(pool, redis) for name, pool in pools.items()}
            schedulers = {name: pool.scheduler for name, pool in pools.items()}
            first = next(iter(pools.values()))
            gateway = first.scheduler.loads.gateway
            self._exchange = HintExchange(redis, schedulers, gateway, first.clock)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the replicas, look at each once, and go on."""
        await asyncio.gather(*(each.start() for each in self._discoveries.values()))
        await asyncio.gather(*(monitor.start() for monitor in self._monitors))
        await asyncio.gather(*(feeds.start() for feeds in self._feeds))
        if self._exchange is not None:
            await self._exchange.start()
        if self._pools:
            self._ticking = asyncio.create_task(self._tick(), name="pools")

    async def stop(self) -> None:
        """End what runs."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self._exchange is not None:
            await self._exchange.stop()
        for feeds in self._feeds:
            await feeds.stop()
        for discovery in self._discoveries.values():
            await discovery.stop()
        for monitor in self._monitors:
            await monitor.stop()
        if self._redis is not None:
            await self._redis.aclose()

    def snapshots(self) -> list[PoolSnapshot]:
        """How all pools are."""
        return [pool.snapshot() for pool in self._pools.values()]

    def snapshot(self, name: str) -> PoolSnapshot | None:
        """How a pool is; None: there is none of that name."""
        pool = self._pools.get(name)
        return None if pool is None else pool.snapshot()

    async def drain(self, name: str, replica_id: str, drained: bool = True) -> None:
        """Give a replica no more requests, or let it take some again, at every gateway.

        Args:
            name: the pool's.
            replica_id: the replica's.
            drained: False to let it take requests again, once it has answered a probe.

        Raises:
            KeyError: there is no such pool or replica.
            RedisError: the other gateways can't be told; nothing has changed.
        """
        pool = self._pools[name]
        _ = pool.roster[replica_id]
        discovery = self._discoveries.get(name)
        if discovery is not None:
            await discovery.drain(replica_id, drained)
        elif drained:
            pool.drain(replica_id)
        else:
            pool.undrain(replica_id)

    async def _tick(self) -> None:
        beats = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            look = beats % OBSERVE_BEATS == 0
            beats += 1
            for pool in self._pools.values():
                now = pool.clock()
                pool.tick(now)
                if self._exchange is None:
                    pool.scheduler.take_hints()  # nobody is there to hear them
                if look:
                    pool.observe(now)
