"""The generation: the one run of the pipeline that answers a key, onto a tape.

It runs in a task of its own, so that no client's leaving ends it. Every client, the first one
included, follows the tape, and hears nothing that is not on it: what was delivered is known, and
is charged, even if this process dies. The answer's end gets there in one step with the key's being
finished, after the pipeline has made the charge durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import structlog

from sluice.backends.base import Endpoint
from sluice.billing.events import encode_events
from sluice.gateway.exchange import HEARTBEAT, Exchange
from sluice.gateway.idempotency.reel import WINDOW_BYTES, Reel
from sluice.gateway.idempotency.tapes import Claim, Group, Head, TapeLost, Tapes, TapesAway
from sluice.gateway.idempotency.watch import PRESENCE_SECONDS
from sluice.gateway.meter import Meter

#: How often a generation looks after its lease and its listeners, in seconds.
LOOK_SECONDS = 0.25

#: Between attempts to write while Redis is away, in seconds.
_REST_SECONDS = 0.05

Serve = Callable[[Exchange], Awaitable[None]]

_log = structlog.get_logger("sluice.idempotency")


@dataclass(frozen=True, slots=True)
class Terms:
    """How long and how much.

    Attributes:
        grace_seconds: how long a generation goes on that nobody listens to.
        lease_seconds: for how long a key stays held by an owner that says nothing; also how long
            writing is tried while Redis is away.
        max_bytes: largest answer that is kept.
        stall_seconds: how long a caller may hold up an answer that has outgrown its tape.
    """

    grace_seconds: float = 30.0
    lease_seconds: float = 5.0
    max_bytes: int = 8 * 1024 * 1024
    stall_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The request to answer: of the first caller, without its key.

    Attributes:
        time_us, started: when it came, as in `Exchange`.
    """

    endpoint: Endpoint
    headers: list[tuple[bytes, bytes]]
    body: bytes
    time_us: int
    started: float


class Generation:
    """One key's; see the module.

    Attributes:
        reel: what those follow who are on this gateway.
    """

    def __init__(
        self,
        claim: Claim,
        asked: Asked,
        tapes: Tapes,
        meter: Meter,
        terms: Terms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claim = claim
        self._asked = asked
        self._tapes = tapes
        self._meter = meter
        self._terms = terms
        self._clock = clock
        self.reel = Reel(lambda offset: tapes.read(claim.owner, offset))
        self._exchange: Exchange | None = None
        self._unread = True
        self._abandoned = asyncio.Event()
        self._head: Head | None = None
        self._head_put = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._offset = 0
        self._large = False
        self._renewed_at = clock()
        self._seen: float | None = None
        self._writing: asyncio.Task[None] | None = None

    async def run(self, serve: Serve) -> None:
        """Answer, and leave the key finished or free.

        Args:
            serve: the pipeline.
        """
        asked = self._asked
        scope = {"method": "POST", "headers": asked.headers}
        exchange = self._exchange = Exchange(asked.endpoint, scope, self._receive, self._send)
        # the first caller's request is the one that is answered and charged
        exchange.id, exchange.time_us, exchange.started = (
            self._claim.owner,
            asked.time_us,
            asked.started,
        )
        exchange.confirm = self._confirm
        keeper = asyncio.create_task(self._keep())
        try:
            await serve(exchange)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if self.reel.end is None:  # cut, with nobody to tell
                await self._flushed()
                await self._end(ok=False, whole=False)

    async def _receive(self) -> dict[str, Any]:
        """The body; then nothing, until nobody has listened for too long."""
        if self._unread:
            self._unread = False
            return {"type": "http.request", "body": self._asked.body, "more_body": False}
        await self._abandoned.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        """Take what the pipeline sends."""
        if message["type"] == "http.response.start":
            self._head = Head.of(message["status"], message["headers"])
            return
        part, more = message.get("body", b""), message.get("more_body", False)
        if self.reel.end is not None or (more and part == HEARTBEAT):  # followers have their own
            return
        if not more:
            await self._flushed()
            self._pending.append(part)
            await self._end(ok=self._answered(), whole=True)
            return
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        if self._pending_bytes > WINDOW_BYTES:
            await self._flushed()

    async def _confirm(self) -> None:
        """Before the charge: see that the key is still ours. If not, the sweeper has charged what
        was delivered, and nothing else is to be."""
        await self._flushed()
        if self.reel.end is None:
            try:
                await self._persist(self._renew)
            except (TapeLost, TapesAway) as error:
                self._lose(error)
        if self.reel.end is not None and self._exchange is not None:
            self._exchange.ended("internal_error", self._exchange.usage, "gateway_lost")

    def _answered(self) -> bool:
        """At the end of the response: whether it is a whole answer, and its charge durable."""
        exchange = self._exchange
        return (
            exchange is not None
            and exchange.outcome == "ok"
            and self._head is not None
            and self._head.status == 200
        )

    async def _flushed(self) -> None:
        """Until what has been sent is on the tape, but for what is held back with the end."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        """Put on the tape what has gathered, group by group."""
        try:
            while self._pending and self.reel.end is None:
                part, group = self._gathered(with_event=True)
                await self._persist(partial(self._tapes.append, self._claim, group))
                self._renewed_at = self._clock()
                self._offset += len(group.part)
                self._head_put = self._head_put or group.head is not None
                self.reel.advance(part, self._head, stored=not self._large)
                if self._large:
                    await self.reel.room(self._terms.stall_seconds)
        except (TapeLost, TapesAway) as error:
            self._lose(error)
        finally:
            self._writing = None

    async def _end(self, *, ok: bool, whole: bool) -> None:
        """Put the end on the tape.

        Args:
            ok: it is an answer; otherwise the key is free again.
            whole: the response is complete, be it an answer or an error.
        """
        if self.reel.end is not None:
            return
        part, group = self._gathered(with_event=False)
        if ok:
            try:
                await self._persist(partial(self._tapes.finish, self._claim, group))
            except (TapeLost, TapesAway) as error:
                self._lose(error)
            else:
                self.reel.advance(part, self._head, "done", stored=not self._large)
            return
        end: Literal["failed", "lost"] = "failed" if whole else "lost"
        # an error may be heard here even where it is not put down; the lease frees the key
        kept = "lost" if group.large else end
        with contextlib.suppress(TapesAway):
            await self._persist(partial(self._tapes.free, self._claim, group, kept))
        self.reel.advance(part, self._head, end, stored=not self._large)

    def _gathered(self, *, with_event: bool) -> tuple[bytes, Group]:
        """What has been sent since the last group, and what of it goes on the tape.

        What outgrows the tape is delivered to those who are here, and known to be large.
        """
        part = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._large = self._large or self._offset + len(part) > self._terms.max_bytes
        event = self._event() if with_event else b""
        kept = b"" if self._large else part
        head = None if self._head_put else self._head
        return part, Group(self._offset, kept, head, event, self._large)

    def _event(self) -> bytes:
        """The usage event that is due if this process is lost after the next group."""
        exchange = self._exchange
        if exchange is None or exchange.admitted is None or not exchange.attempts:
            return b""
        return encode_events([self._meter.lost(exchange, exchange.admitted)])

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write; while Redis is away, again and again for the time of a lease."""
        deadline = self._clock() + self._terms.lease_seconds
        while True:
            try:
                await write()
                return
            except TapesAway:
                if self._clock() > deadline:
                    raise
            await asyncio.sleep(_REST_SECONDS)

    async def _keep(self) -> None:
        """Hold the lease; give up when nobody has listened for too long."""
        while not self._abandoned.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            if self.reel.heard and now - self._renewed_at < self._terms.lease_seconds / 3:
                continue
            try:
                await self._renew()
            except TapesAway:
                continue  # whoever writes finds out
            except TapeLost as error:
                self._lose(error)
                return
            if not self.reel.heard and self._silence(now) > self._terms.grace_seconds:
                _log.info("abandoned by all its callers", request_id=self._claim.owner)
                self._abandoned.set()

    async def _renew(self) -> None:
        self._seen = await self._tapes.renew(self._claim)
        self._renewed_at = self._clock()

    def _silence(self, now: float) -> float:
        """For how long nobody has listened, here or elsewhere. Elsewhere they say so now and then
        only, and count as listening in between."""
        here = now - self.reel.silent_since
        if self._seen is None:
            return here
        return min(here, max(0.0, self._seen - 2 * PRESENCE_SECONDS))

    def _lose(self, error: Exception) -> None:
        """The tape can't be written any more: nobody can follow, so nothing more is generated.
        Where it is somebody else's by now, so is the charge."""
        if self.reel.end is not None:
            return
        if isinstance(error, TapeLost) and self._exchange is not None:
            self._exchange.charged = True
        _log.warning(
            "tape lost", request_id=self._claim.owner, error=type(error).__name__, reason=str(error)
        )
        self.reel.advance(b"", self._head, "lost")
        self._abandoned.set()
