"""The reel: what this process knows of a tape, and the callers here that follow it.

Bytes get onto a reel once they are on the tape. The newest are held in memory, so that callers
that keep up cost no reading; whoever is behind reads from the tape, at his own pace. Only bytes
that are on no tape, because the answer has outgrown it, wait in memory for those who are behind;
there are never more of them than the window holds, but for what came in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self

from sluice.gateway.idempotency.tapes import Head

#: Newest bytes that are held in memory.
WINDOW_BYTES = 256 * 1024

#: Most that a listener gets at a time.
PIECE_BYTES = 64 * 1024

#: How it ended: whole; with an error that is on the tape; broken off, in the middle or before
#: anything; or grown beyond what is kept for others.
End = Literal["done", "failed", "lost", "large"]

Read = Callable[[int], Awaitable[bytes]]


class TornTape(Exception):
    """The listener was too slow: what comes next is not kept any more."""


class Reel:
    """One tape's; see the module.

    Attributes:
        head: the answer's status and headers, once they are known.
        length: bytes that may be delivered.
        end: how it ended; None while it goes on. What is before the end is in `length` by then.
        silent_since: when the last listener left, on the monotonic clock.
    """

    def __init__(self, read: Read, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        read: gives bytes of the tape from an offset on.
        """
        self.read = read
        self.head: Head | None = None
        self.length = 0
        self.end: End | None = None
        self.silent_since = clock()
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._stored = 0
        self._base = 0
        self._window = bytearray()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def heard(self) -> bool:
        """Whether anybody here listens."""
        return bool(self._listeners)

    def listen(self) -> Listener:
        """A new listener, from the first byte on; it listens while it is entered."""
        return Listener(self)

    def advance(
        self, part: bytes, head: Head | None, end: End | None = None, stored: bool = True
    ) -> None:
        """The next bytes may be delivered.

        Args:
            part: the bytes.
            head: the answer's, as soon as it is known.
            end: set with the last.
            stored: the bytes are on the tape.
        """
        self.head = self.head or head
        self._window += part
        self.length += len(part)
        if stored:
            self._stored = self.length
        self.end = self.end or end
        self._trim(self._needed())
        self._wake()

    def skip_to(self, length: int) -> None:
        """All is on the tape up to there, and need not be held here."""
        self._window.clear()
        self._base = self._stored = self.length = length
        self._wake()

    async def room(self, patience: float) -> None:
        """Wait until the listeners have what is on no tape, but for a window of it.

        Args:
            patience: seconds; then those who are further behind lose it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.length - self._needed() > WINDOW_BYTES:
                    await self._change()
        self._trim(self.length)

    async def beyond(self, offset: int) -> None:
        """Wait for the head and for bytes after an offset, or for the end."""
        while self.end is None and (self.head is None or self.length <= offset):
            await self._change()

    def piece(self, offset: int) -> bytes | None:
        """Bytes from an offset on, none at the end; None where they are not held in memory."""
        if offset < self._base:
            return None
        first = offset - self._base
        return bytes(self._window[first : first + PIECE_BYTES])

    def stored(self, offset: int) -> bool:
        """Whether the tape has the bytes after an offset."""
        return offset < self._stored

    def joined(self, listener: Listener) -> None:
        """Somebody listens."""
        self._listeners.add(listener)

    def left(self, listener: Listener) -> None:
        """Somebody listens no more."""
        self._listeners.discard(listener)
        if not self._listeners:
            self.silent_since = self._clock()
        self._wake()

    def moved(self) -> None:
        """A listener has got bytes that may be on no tape."""
        if self.length > self._stored:
            self._wake()

    def _needed(self) -> int:
        """From where on bytes are on no tape and somebody needs them."""
        slowest = min((one.offset for one in self._listeners), default=self.length)
        return max(self._stored, slowest)

    def _trim(self, limit: int) -> None:
        """Drop what is older than the window, up to a limit."""
        base = min(self.length - WINDOW_BYTES, limit)
        if base > self._base:
            del self._window[: base - self._base]
            self._base = base

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Listener:
    """One caller's place on a reel.

    Attributes:
        offset: the bytes that it has got.
    """

    def __init__(self, reel: Reel) -> None:
        self._reel = reel
        self.offset = 0

    def __enter__(self) -> Self:
        self._reel.joined(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reel.left(self)

    async def next(self) -> bytes:
        """The next bytes, as soon as there are any; none at the end.

        Raises:
            TornTape: see there.
            TapesAway: it is behind, and the tape can't be read.
        """
        reel = self._reel
        await reel.beyond(self.offset)
        part = reel.piece(self.offset)
        if part is None:
            part = await reel.read(self.offset) if reel.stored(self.offset) else b""
            if not part:
                raise TornTape
        self.offset += len(part)
        reel.moved()
        return part
