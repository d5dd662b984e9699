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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from redis.exceptions import RedisError

from sluice.billing.events import FIELD, STREAM, UsageEvent, encode_events
from sluice.billing.redis_link import RedisLink
from sluice.billing.spool import ClaimedFile, Spool

_log = structlog.get_logger("sluice.billing")


class UsageNotDurable(Exception):
    """Neither the stream nor the spool took the event; its answer must not look finished."""


class Charges(Protocol):
    """Where usage events go: to a recorder, or to who stores them together with their answers."""

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        """See `Recorder.submit`."""
        ...


class RecorderObserver(Protocol):
    """What the recorder tells about itself."""

    def committed(self, path: str, events: int, seconds: float) -> None:
        """A group became durable by `path` (stream or spool)."""
        ...

    def spooled_bytes(self, size: int) -> None:
        """The spool holds so many bytes."""
        ...

    def waiting_entries(self, count: int) -> None:
        """The stream holds so many entries that no consumer has stored yet."""
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


@dataclass(slots=True)
class _Group:
    """Events that become durable together."""

    durable: asyncio.Future[None]
    events: list[UsageEvent] = field(default_factory=list)


class Recorder:
    """Takes usage events; see the module."""

    def __init__(
        self,
        link: RedisLink,
        config: RecorderConfig,
        observer: RecorderObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._config = config
        self._observer = observer
        self._clock = clock
        self._spool = Spool(config.spool)
        self._spool_lock = asyncio.Lock()
        self._gathering: _Group | None = None
        self._flying: _Group | None = None
        self._away_until = 0.0
        self._told_away = False
        self._keeper: asyncio.Task[None] | None = None
        self._spooling: asyncio.Task[None] | None = None

    @property
    def stream_away(self) -> bool:
        """The stream failed lately, or there is no connection: events go to the spool."""
        return not self._link.up or self._clock() < self._away_until

    async def start(self) -> None:
        """Connect if possible, and begin to replay what earlier processes left in the spool."""
        await self._connect()
        self._keeper = asyncio.create_task(self._keep(), name="usage-recorder")

    async def stop(self) -> None:
        """Commit what is pending, then stop; what is in the spool stays for the next start."""
        while self._flying is not None:
            with contextlib.suppress(UsageNotDurable):
                await asyncio.shield(self._flying.durable)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._link.drop()
        self._spool.close()

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        """Hand over an event; the future ends when it is durable.

        The event is on its way when this returns, or waits for the write under way. It is
        committed whether or not anybody waits: await the future shielded. The future raises
        `UsageNotDurable` when neither stream nor spool could take it.
        """
        group = self._gathering
        if group is None:
            group = self._gathering = _Group(asyncio.get_running_loop().create_future())
        group.events.append(event)
        if self._flying is None:
            self._launch()
        return group.durable

    def _launch(self) -> None:
        """Send what has gathered."""
        group, self._gathering = self._gathering, None
        self._flying = group
        if group is None:
            return
        started = self._clock()
        try:
            text = encode_events(group.events)
        except Exception as error:  # noqa: BLE001 - whatever it is, later groups must go on
            self._lost(group, error)
            return
        if self.stream_away:
            self._to_spool(group, text, started)
            return
        reply = self._link.send("XADD", STREAM, "*", FIELD, text)
        # A reply that comes too late must not be taken for the next one's: drop the connection.
        timer = asyncio.get_running_loop().call_later(self._config.stream_timeout, self._link.drop)
        reply.add_done_callback(partial(self._answered, group, text, started, timer))

    def _answered(
        self,
        group: _Group,
        text: bytes,
        started: float,
        timer: asyncio.TimerHandle,
        reply: asyncio.Future[Any],
    ) -> None:
        timer.cancel()
        if reply.exception() is None:
            self._landed(group, "stream", started)
            return
        self._away_until = self._clock() + self._config.retry_seconds
        self._to_spool(group, text, started)

    def _to_spool(self, group: _Group, text: bytes, started: float) -> None:
        self._spooling = asyncio.create_task(self._write_to_spool(group, text, started))

    async def _write_to_spool(self, group: _Group, text: bytes, started: float) -> None:
        try:
            async with self._spool_lock:
                await asyncio.to_thread(self._spool.append, text)
        except Exception as error:  # noqa: BLE001 - whatever it is, later groups must go on
            self._lost(group, error)
        else:
            self._landed(group, "spool", started)

    def _landed(self, group: _Group, path: str, started: float) -> None:
        group.durable.set_result(None)
        self._launch()
        self._observer.committed(path, len(group.events), self._clock() - started)

    def _lost(self, group: _Group, error: Exception) -> None:
        group.durable.set_exception(UsageNotDurable(f"usage can't be made durable: {error}"))
        group.durable.exception()  # a group whose requests have all gone has nobody to tell
        self._launch()

    async def _keep(self) -> None:
        """Reconnect when the connection is lost; replay the spool when the stream is there."""
        while True:
            try:
                size = await asyncio.to_thread(self._spool.size)
                self._observer.spooled_bytes(size)
                await self._connect()
                if size and not self.stream_away:
                    await self._replay()
                await self._look_at_stream()
            except OSError as error:
                _log.error("spool can't be replayed", error=str(error))
            await asyncio.sleep(self._config.retry_seconds)

    async def _look_at_stream(self) -> None:
        """Consumers delete what they have stored: the stream's length is the ledger's lag."""
        if self.stream_away:
            return
        with contextlib.suppress(RedisError, TimeoutError):
            async with asyncio.timeout(self._config.stream_timeout):
                self._observer.waiting_entries(await self._link.send("XLEN", STREAM))

    async def _connect(self) -> None:
        if self._link.up or self._clock() < self._away_until:
            return
        try:
            await self._link.connect()
        except (RedisError, OSError) as error:
            if not self._told_away:
                _log.warning("usage stream away", error=type(error).__name__, reason=str(error))
            self._told_away = True
        else:
            self._told_away = False

    async def _replay(self) -> None:
        async with self._spool_lock:
            paths = await asyncio.to_thread(self._spool.take)
        for path in paths:
            claimed = ClaimedFile.claim(path)
            if claimed is None:
                continue
            try:
                for group in claimed.groups():
                    async with asyncio.timeout(self._config.stream_timeout):
                        await self._link.send("XADD", STREAM, "*", FIELD, group)
                claimed.remove()
            except (RedisError, TimeoutError):
                self._away_until = self._clock() + self._config.retry_seconds
                return
            finally:
                claimed.close()
