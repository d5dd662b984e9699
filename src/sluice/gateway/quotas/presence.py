"""Presence: processes that share limits say that they live; one that falls silent is buried.

What a dead process held is given back by whoever notices first. Only those bury who have been in
touch with Redis themselves for the whole time that the other was silent: after Redis was away
nobody is taken for dead merely because nobody could speak.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from sluice.billing.redis_link import LinkDown, RedisLink
from sluice.gateway.quotas.counters import Script

BEAT_SECONDS = 1.0
ANSWER_SECONDS = 2.0

_log = structlog.get_logger("sluice.quotas")


class Presence:
    """This process among those that share its Redis."""

    def __init__(
        self,
        link: RedisLink,
        process: str,
        *,
        heard_time: Callable[[float, float], None],
        unknown_here: Callable[[], None],
        counted: Callable[[float], None] = lambda processes: None,
        lease_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        link: kept connected by somebody else.
        process: this process's id.
        heard_time: is told Redis's time, in milliseconds since the epoch, and when it was asked
            for.
        unknown_here: Redis did not know this process: it was taken for dead, or Redis has lost
            its data.
        counted: is told the number of processes alive.
        lease_seconds: a process that is silent for longer is taken for dead.
        """
        self._link = link
        self._process = process
        self._heard_time = heard_time
        self._unknown_here = unknown_here
        self._counted = counted
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._beat_script, self._reap_script = Script("beat.lua"), Script("reap.lua")
        self._in_touch_since: float | None = None
        self._known = False
        self._task: asyncio.Task[None] | None = None
        #: Processes alive when last heard, this one included.
        self.processes = 1

    async def start(self) -> None:
        """Say that this process lives, from now on."""
        await self._beat_once()
        self._task = asyncio.create_task(self._run(), name="presence")

    async def stop(self) -> None:
        """This process leaves; what it still holds is given back at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._reap_script.run(self._link, self._process)
        except (RedisError, TimeoutError):
            _log.warning("left without saying so; others will notice")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._beat_once()

    async def _beat_once(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._beat()
        except (RedisError, TimeoutError) as error:
            self._in_touch_since = None
            if not isinstance(error, LinkDown | TimeoutError):  # Redis is there, and refuses us
                _log.error("presence can't be told", error=str(error))

    async def _beat(self) -> None:
        lease_ms = str(int(self._lease_seconds * 1000))
        asked_at = self._clock()
        us, added, alive, dead = await self._beat_script.run(self._link, self._process, lease_ms)
        self._heard_time(us / 1000, asked_at)
        self.processes = max(1, alive)
        self._counted(self.processes)
        if added and self._known:
            self._unknown_here()
        self._known = True
        now = self._clock()
        if self._in_touch_since is None:
            self._in_touch_since = now
        if now - self._in_touch_since < self._lease_seconds:
            return
        for process in dead:
            if await self._reap_script.run(self._link, process):
                _log.warning("a gateway died; its slots are free", gateway=process.decode())
