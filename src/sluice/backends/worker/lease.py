"""The lease: tells the pool what a replica is, again and again, and at once when it changes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog
from redis.exceptions import RedisError

from sluice.backends.replicas import BEAT_SECONDS, Announcement, Replicas

#: Seconds that Redis may take to answer.
ANSWER_SECONDS = 1.0

_AWAY = (RedisError, OSError, TimeoutError)

_log = structlog.get_logger("sluice.worker")


class Lease:
    """A replica's place in the pool. Redis may be away: then nobody hears, and the engine works on.

    Attributes:
        announcement: what is told.
    """

    def __init__(
        self, replicas: Replicas, announcement: Announcement, beat_seconds: float = BEAT_SECONDS
    ) -> None:
        self._replicas = replicas
        self.announcement = announcement
        self._beat_seconds = beat_seconds
        self._changed = asyncio.Event()
        self._away = False
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell, from now on."""
        self._task = asyncio.create_task(self._run(), name="lease")

    def update(self, **changes: Any) -> None:
        """Change the announcement. A new load can wait for the next beat; all else is told now."""
        self.announcement = msgspec.structs.replace(self.announcement, **changes)
        if changes.keys() - {"load"}:
            self._changed.set()

    async def stop(self, leave: bool = True) -> None:
        """Tell no more.

        Args:
            leave: give the place up at once; otherwise it lapses, with what was told last to be
                read until then.
        """
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        told = self.announcement
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if leave:
                    await self._replicas.leave(told.pool, told.id)
                else:
                    await self._replicas.beat(told)
        except _AWAY as error:
            _log.warning("left without saying so", error=type(error).__name__)

    async def _run(self) -> None:
        # Not by cancelling alone: a cancellation that meets the end of a write is lost (the Redis
        # client uses `asyncio.wait_for`, which does so before Python 3.12).
        while not self._ended:
            self._changed.clear()
            await self._beat()
            try:
                async with asyncio.timeout(self._beat_seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _beat(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._replicas.beat(self.announcement)
        except _AWAY as error:
            if not self._away:
                _log.warning("the pool can't be told", error=type(error).__name__)
            self._away = True
        else:
            if self._away:
                _log.info("the pool is told again")
            self._away = False
