"""Lifelines: what can end a request from outside, and the one sweep that watches all of them.

A request's task is interrupted when its client leaves, when a deadline passes, or when the
process must go. Deadlines of all requests are checked in one sweep a few times a second: with
thousands of open streams this costs a fraction of what a timer for each would.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

SWEEP_SECONDS = 0.1

#: Requests that are over sooner are not watched for their client's leaving.
WATCH_AFTER_SECONDS = 0.005

Message = Any
Receive = Callable[[], Awaitable[Message]]


class Cut(Enum):
    """Why a request was interrupted."""

    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    BETWEEN_TOKENS = "between_tokens"
    TOTAL = "total"
    SHUTDOWN = "shutdown"


class Lifeline:
    """One request's; to be used in the request's own task.

    Attributes:
        cut_by: why the task was interrupted; None while it wasn't.
        total_at: when the whole request must be over, on the monotonic clock; None: no limit.
        next_piece_by: when the stream must have moved on; None: no limit.
        silent_since: since when the client has heard nothing of a stream; None: not streaming.
        unread_since: since when a part of a stream waits to be taken by the client; None: none is.
    """

    __slots__ = (
        "_arming",
        "_heartbeat",
        "_released",
        "_task",
        "_watch",
        "cut_by",
        "next_piece_by",
        "silent_since",
        "total_at",
        "unread_since",
    )

    def __init__(self, heartbeat: Callable[[], None]) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lifeline is made in the task that it interrupts")
        self._task: asyncio.Task[Any] = task
        self._heartbeat = heartbeat
        self._arming: asyncio.TimerHandle | None = None
        self._watch: asyncio.Future[Message] | None = None
        self._released = False
        self.cut_by: Cut | None = None
        self.total_at: float | None = None
        self.next_piece_by: float | None = None
        self.silent_since: float | None = None
        self.unread_since: float | None = None

    def watch_client(self, receive: Receive) -> None:
        """Interrupt when the client leaves, from a moment on. The body must have been received.

        The moment is short of anything that a client would notice, and spares requests that are
        over by then the watch, which costs the server a task of its own.
        """
        loop = asyncio.get_running_loop()
        self._arming = loop.call_later(WATCH_AFTER_SECONDS, self._watch_now, receive)

    def cut(self, why: Cut) -> None:
        """Interrupt the task: it gets a CancelledError, and finds the reason in `cut_by`."""
        if self.cut_by is None and not self._released:
            self.cut_by = why
            self._task.cancel()

    def caught(self) -> bool:
        """In a handler of CancelledError: whether it was this lifeline's, and is now over.

        Otherwise somebody else cancelled the task, and the error must be raised again.
        """
        if self.cut_by is None:
            return False
        return self._task.uncancel() == 0

    def remaining(self) -> float:
        """Seconds until the whole request must be over."""
        return math.inf if self.total_at is None else self.total_at - time.monotonic()

    def release(self) -> None:
        """What may still be awaited must not be interrupted: the answer is complete."""
        self._released = True
        if self._arming is not None:
            self._arming.cancel()
            self._arming = None

    def let_go(self) -> None:
        """The request is over. What it held goes at once, and not only when the collector of
        cycles comes by: under load that would be tens of thousands of objects later, each of them
        out of the processor's caches by then.

        The watch ends here and not with `release`: the server's thread, which has to hear of it,
        is awake with the end of the answer by now, and would be woken once more before.
        """
        self._heartbeat = _nothing
        if self._watch is not None:
            self._watch.remove_done_callback(self._received)
            self._watch.cancel()
            self._watch = None

    def sweep(
        self, now: float, heartbeat_seconds: float, stalled_seconds: float = math.inf
    ) -> None:
        """Check the deadlines."""
        if self.cut_by is not None:
            return
        if self.total_at is not None and now > self.total_at:
            self.cut(Cut.TOTAL)
        elif self.next_piece_by is not None and now > self.next_piece_by:
            self.cut(Cut.BETWEEN_TOKENS)
        elif self.unread_since is not None and now - self.unread_since > stalled_seconds:
            self.cut(Cut.CLIENT_STALLED)
        elif self.silent_since is not None and now - self.silent_since > heartbeat_seconds:
            self.silent_since = now
            self._heartbeat()

    def _watch_now(self, receive: Receive) -> None:
        self._watch = asyncio.ensure_future(receive())
        self._watch.add_done_callback(self._received)

    def _received(self, watch: asyncio.Future[Message]) -> None:
        if watch.cancelled() or watch.exception() is not None:
            return
        if watch.result()["type"] == "http.disconnect":
            self.cut(Cut.CLIENT_GONE)


class Lifelines:
    """All requests in progress."""

    def __init__(
        self,
        heartbeat_seconds: float,
        observe_lag: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        stalled_seconds: float = math.inf,
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._observe_lag = observe_lag
        self._stalled_seconds = stalled_seconds
        self._clock = clock
        self._active: set[Lifeline] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._active)

    def add(self, line: Lifeline) -> None:
        """A request begins."""
        self._active.add(line)

    def remove(self, line: Lifeline) -> None:
        """A request is over."""
        self._active.discard(line)
        line.let_go()

    def cut_all(self, why: Cut) -> None:
        """Interrupt every request."""
        for line in tuple(self._active):
            line.cut(why)

    async def start(self) -> None:
        """Begin sweeping."""
        self._task = asyncio.create_task(self._sweep(), name="lifelines")

    async def stop(self) -> None:
        """End the sweep."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sweep(self) -> None:
        due = self._clock() + SWEEP_SECONDS
        while True:
            await asyncio.sleep(max(0.0, due - self._clock()))
            now = self._clock()
            self._observe_lag(max(0.0, now - due))
            due = now + SWEEP_SECONDS
            for line in tuple(self._active):
                line.sweep(now, self._heartbeat_seconds, self._stalled_seconds)


def _nothing() -> None:
    """Nobody is there to hear a heart beat."""
