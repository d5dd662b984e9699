"""The recorder: makes usage events durable before their answers end.

Group commit: while one write is on its way, the events of all requests that end meanwhile gather,
and the next write takes them together. An event is durable once the usage stream (Redis) has
accepted it, or, while Redis is away, once the local spool has it on disk. Events may reach the
stream twice (a reply that got lost, a spool replayed twice); the ledger takes each id once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redis.asyncio import Redis

from sluice.billing.events import UsageEvent, encode_events
from sluice.billing.spool import ClaimedFile, Spool
from sluice.billing.stream import StreamAway, UsageStream


class UsageNotDurable(Exception):
    """Neither the stream nor the spool took the event; its answer must not look finished."""


class RecorderObserver(Protocol):
    """What the recorder tells about itself."""

    def committed(self, path: str, events: int, seconds: float) -> None:
        """A group became durable by `path` (stream or spool)."""
        ...

    def spooled_bytes(self, size: int) -> None:
        """The spool holds so many bytes."""
        ...


@dataclass(frozen=True, slots=True)
class RecorderConfig:
    """Attributes:
    spool: the directory for events while the stream is away.
    stream_timeout: seconds within which the stream must accept a group.
    retry_seconds: how long a stream that failed rests before it is tried again.
    """

    spool: Path
    stream_timeout: float = 2.0
    retry_seconds: float = 0.5


class Recorder:
    """Takes usage events; see the module."""

    def __init__(
        self,
        redis: Redis,
        config: RecorderConfig,
        observer: RecorderObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = UsageStream(redis, config.stream_timeout)
        self._replay_stream = UsageStream(redis, config.stream_timeout)
        self._config = config
        self._observer = observer
        self._clock = clock
        self._spool = Spool(config.spool)
        self._pending: list[UsageEvent] = []
        self._committed: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._away_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._spool_lock = asyncio.Lock()
        self._stopping = False

    @property
    def stream_away(self) -> bool:
        """The stream failed lately, and events go to the spool."""
        return self._clock() < self._away_until

    async def start(self) -> None:
        """Begin committing, and replay what earlier processes left in the spool."""
        self._tasks = [
            asyncio.create_task(self._commit_groups(), name="usage-commit"),
            asyncio.create_task(self._replay_spool(), name="usage-replay"),
        ]

    async def stop(self) -> None:
        """Commit what is pending, then stop; what is in the spool stays for the next start."""
        self._stopping = True
        self._wake.set()
        committer, replayer = self._tasks
        await committer
        replayer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replayer
        await self._stream.close()
        await self._replay_stream.close()
        self._spool.close()

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        """Hand over an event; the future ends when it is durable.

        The event is committed whether or not anybody waits: await the future shielded.
        The future raises `UsageNotDurable` when neither stream nor spool could take it.
        """
        if self._committed is None:
            self._committed = asyncio.get_running_loop().create_future()
            self._wake.set()
        self._pending.append(event)
        return self._committed

    async def _commit_groups(self) -> None:
        while not (self._stopping and self._committed is None):
            await self._wake.wait()
            self._wake.clear()
            events, self._pending = self._pending, []
            done, self._committed = self._committed, None
            if done is None:
                continue
            try:
                await self._commit(events)
            except OSError as error:
                done.set_exception(UsageNotDurable(f"usage can't be made durable: {error}"))
                done.exception()  # a group whose requests have all gone has nobody to tell
            else:
                done.set_result(None)

    async def _commit(self, events: list[UsageEvent]) -> None:
        started = self._clock()
        group = encode_events(events)
        if started >= self._away_until:
            try:
                await self._stream.append(group)
            except StreamAway:
                self._away_until = self._clock() + self._config.retry_seconds
            else:
                self._observer.committed("stream", len(events), self._clock() - started)
                return
        async with self._spool_lock:
            await asyncio.to_thread(self._spool.append, group)
        self._observer.committed("spool", len(events), self._clock() - started)

    async def _replay_spool(self) -> None:
        while True:
            size = await asyncio.to_thread(self._spool.size)
            self._observer.spooled_bytes(size)
            if size and not self.stream_away:
                await self._replay()
            await asyncio.sleep(self._config.retry_seconds)

    async def _replay(self) -> None:
        async with self._spool_lock:
            paths = await asyncio.to_thread(self._spool.take)
        for path in paths:
            claimed = ClaimedFile.claim(path)
            if claimed is None:
                continue
            try:
                for group in claimed.groups():
                    await self._replay_stream.append(group)
                claimed.remove()
            except StreamAway:
                self._away_until = self._clock() + self._config.retry_seconds
                return
            finally:
                claimed.close()
