"""Hears one replica's KV events over ZeroMQ, and catches up with what it has missed.

The engine numbers its messages and keeps the last ones (10,000 by default), which it sends again
to who asks. So a feed asks for all of them when it connects, for some when a number is missing, and
for all again when the connection broke. What the engine has no more is lost: then what it holds is
learnt anew, from its next messages, and the index goes on without.

Sockets are looked at every `BEAT_SECONDS` instead of waking the event loop for each step of each
engine: an idle look costs two microseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import structlog
import zmq

from sluice.backends.vllm import EventSource, NoEventSource, VLLMInspector
from sluice.router.pool.engine_caches import EngineCaches
from sluice.router.pool.kv_events import EventKind, UnreadableEvents, read_batch

#: Seconds between two looks.
BEAT_SECONDS = 0.05

#: Seconds until a source that is away is looked for again; and one that is no use, since the engine
#: publishes nothing, or something else.
RETRY_SECONDS, USELESS_SECONDS = 1.0, 30.0

#: Limit on asking the engine where its events are, and on each pause in what it sends again.
_ANSWER_SECONDS = 2.0

#: Messages that are taken in before anything else has its turn: a millisecond's work or so.
_AT_ONCE = 32

#: Messages that may wait in memory, and the bytes of one.
_WAITING, _LONGEST = 10_000, 64 << 20

#: The engine's host has gone without a word if it does not answer for so long, in milliseconds.
_HEARTBEAT, _SILENCE = 2_000, 6_000

_BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

#: The number of a replay's last message.
_END = (-1).to_bytes(8, "big", signed=True)

_log = structlog.get_logger("sluice.pool")


class KvFeed:
    """One replica's."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        replica: str,
        inspector: VLLMInspector,
        caches: EngineCaches,
        applied: Callable[[Counter[EventKind]], None],
        missed: Callable[[bool], None],
    ) -> None:
        """Args:
        context: makes sockets.
        replica: who is heard.
        inspector: asks it where its events are.
        caches: learns what it says.
        applied: is told how much that was.
        missed: is told that messages were missed, and whether all of them came later.
        """
        self._context = context
        self._replica = replica
        self._inspector = inspector
        self._caches = caches
        self._applied = applied
        self._missed = missed
        self._next: int | None = None
        self._told = False

    async def run(self) -> None:
        """For ever: find the source, hear it, and find it again when it is gone."""
        while True:
            wait = RETRY_SECONDS
            try:
                source = await self._inspector.event_source(_ANSWER_SECONDS)
                if source is not None:
                    await self._follow(source)
            except (NoEventSource, UnreadableEvents, zmq.ZMQError) as error:
                wait = USELESS_SECONDS
                self._tell(error)
            finally:
                self._caches.end(self._replica)
            await asyncio.sleep(wait)

    async def _follow(self, source: EventSource) -> None:
        """Hear a source until the connection breaks.

        Raises:
            UnreadableEvents: what it sends is something else.
            ZMQError: its address is none.
        """
        with self._subscribed(source) as (events, monitor):
            self._begin()
            await self._catch_up(source, 0)
            while not any(_received(monitor)):
                for _, number, payload in _received(events):
                    await self._take(source, int.from_bytes(number, "big"), payload)
                await asyncio.sleep(_pause(events))

    async def _take(self, source: EventSource, number: int, payload: bytes) -> None:
        if self._next is not None and number > self._next:
            complete = await self._catch_up(source, self._next)
            healed = complete and self._next >= number
            self._missed(healed)
            if self._next < number:
                self._begin()
        if self._next is None or number >= self._next:
            self._apply(number, payload)

    async def _catch_up(self, source: EventSource, start: int) -> bool:
        """Take in what the engine still has, from a number on; says whether nothing is missing."""
        complete = True
        async with aclosing(self._replayed(source, start)) as replayed:
            async for number, payload in replayed:
                if self._next is None or number > self._next:
                    complete = complete and number == start
                    self._begin()
                if self._next is None or number >= self._next:
                    self._apply(number, payload)
        return complete

    async def _replayed(
        self, source: EventSource, start: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """What the engine sends again, from a number on; nothing where it does not answer."""
        if source.replay is None:
            return
        loop = asyncio.get_running_loop()
        with self._socket(zmq.DEALER, source.replay) as asking:
            asking.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
            deadline = loop.time() + _ANSWER_SECONDS
            while loop.time() < deadline:
                for _, _, number, payload in _received(asking):
                    if number == _END:
                        return
                    yield int.from_bytes(number, "big"), payload
                    deadline = loop.time() + _ANSWER_SECONDS
                await asyncio.sleep(_pause(asking))

    def _begin(self) -> None:
        self._next = None
        self._caches.begin(self._replica)

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self._applied(self._caches.apply(self._replica, read_batch(payload)))

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            problem = f"{type(error).__name__}: {error}"
            _log.warning("KV events not heard", replica=self._replica, problem=problem)

    @contextmanager
    def _subscribed(
        self, source: EventSource
    ) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
        """A subscription, and a socket that has something to say once it has broken."""
        with self._socket(zmq.SUB) as events:
            events.setsockopt(zmq.RECONNECT_IVL, -1)
            events.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT)
            events.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE)
            events.subscribe(source.topic)
            monitor = events.get_monitor_socket(_BROKEN)
            try:
                events.connect(source.events)
                yield events, monitor
            finally:
                events.disable_monitor()
                monitor.close()

    @contextmanager
    def _socket(self, kind: int, address: str | None = None) -> Iterator[zmq.Socket[bytes]]:
        socket = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.RCVHWM, _WAITING)
            socket.setsockopt(zmq.MAXMSGSIZE, _LONGEST)
            if address is not None:
                socket.connect(address)
            yield socket
        finally:
            socket.close()


def _pause(socket: zmq.Socket[bytes]) -> float:
    """Until the next look: others have their turn in any case."""
    return 0.0 if socket.poll(0) else BEAT_SECONDS


def _received(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """The messages that have come, a number of them at most."""
    for _ in range(_AT_ONCE):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
