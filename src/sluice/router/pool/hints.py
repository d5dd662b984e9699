"""What gateways tell each other of their pools: outstanding work, and where prompts went.

Batches over Redis's publish and subscribe, off the request path. Nothing is kept and nothing is
asked for again: a hint carries absolute numbers, so that the next one heals what was lost, and
whoever is silent for long is forgotten (see `load`). So everything is said again once a second.
While Redis is away each gateway goes on with what it knows itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.router.pool.load import Hint
from sluice.router.pool.scheduler import PoolScheduler

CHANNEL = "sluice:pool-hints"

#: Seconds between two batches, and between two times that everything is said.
BATCH_SECONDS = 0.05
REPEAT_SECONDS = 1.0

#: Seconds until a connection is tried again.
_RETRY_SECONDS = 0.5

#: How long a message is waited for in one go.
_LISTEN_SECONDS = 0.5

_log = structlog.get_logger("sluice.pool")


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """What one gateway says of one pool."""

    pool: str
    hints: tuple[Hint, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[Batch, ...])


class HintExchange:
    """Exchanges the hints of all pools of one gateway process."""

    def __init__(
        self,
        redis: Redis,
        pools: Mapping[str, PoolScheduler],
        gateway: str,
        clock: Callable[[], float],
    ) -> None:
        """Args:
        redis: the general client; connections of its own are taken from it.
        pools: by name.
        gateway: this process's name, which is on every message so that its own are left unread.
        clock: the pools'.
        """
        self._redis = redis
        self._pools = pools
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._sender = blake2b(gateway.encode(), digest_size=8).digest()

    async def start(self) -> None:
        """Begin to talk and to listen."""
        self._tasks = [
            asyncio.create_task(self._talk(), name="pool-hints-talk"),
            asyncio.create_task(self._listen(), name="pool-hints-listen"),
        ]

    async def stop(self) -> None:
        """End it."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def news(self, repeat: bool) -> tuple[Batch, ...]:
        """What the others should hear now.

        Args:
            repeat: say everything, and not only what has changed.
        """
        batches = []
        for name, scheduler in self._pools.items():
            if repeat:
                scheduler.announce(self._clock())
            hints = scheduler.take_hints()
            if not (repeat or scheduler.loads.peers):
                continue  # nobody is known to listen; who comes will be told what is then
            if hints:
                batches.append(Batch(name, tuple(hints)))
        return tuple(batches)

    def take(self, message: bytes) -> None:
        """Take in what a gateway says, oneself excluded; what can't be read is ignored."""
        if message.startswith(self._sender):
            return
        message = message[len(self._sender) :]
        try:
            batches = _DECODER.decode(message)
        except msgspec.MsgspecError:
            return
        now = self._clock()
        for batch in batches:
            scheduler = self._pools.get(batch.pool)
            if scheduler is not None:
                for hint in batch.hints:
                    scheduler.receive(hint, now)

    async def _talk(self) -> None:
        repeated = rested = 0.0
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            now = self._clock()
            repeat = now - repeated >= REPEAT_SECONDS
            batches = self.news(repeat)
            if repeat:
                repeated = now
            if not batches or now < rested:
                continue
            try:
                await self._redis.publish(CHANNEL, self._sender + _ENCODER.encode(batches))
            except (RedisError, OSError, TimeoutError):
                rested = self._clock() + _RETRY_SECONDS

    async def _listen(self) -> None:
        told = False
        while not self._stopping:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    told = False
                    while not self._stopping:  # waiting for a message may outlive a cancellation
                        message = await subscription.get_message(timeout=_LISTEN_SECONDS)
                        if message is not None:
                            self.take(message["data"])
            except (RedisError, OSError, TimeoutError) as error:
                if not told:
                    _log.warning("hints of other gateways away", error=type(error).__name__)
                told = True
                await asyncio.sleep(_RETRY_SECONDS)
