"""The follower: sends a reel to one caller, as it comes, and says so where it breaks off."""

from __future__ import annotations

import asyncio
import re
import time

from sluice.backends.base import Endpoint
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.gateway.idempotency.reel import Listener, Reel, TornTape
from sluice.gateway.idempotency.tapes import Head, TapesAway
from sluice.gateway.lifeline import Cut
from sluice.wire import sse
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_errors import error_event
from sluice.wire.responses_stream import Events

#: Headers by which an answer is told from others; each caller gets his own.
_IDS = ("x-request-id", "request-id")

#: Headers about the limits of the first caller, as they were.
_LIMITS = ("x-ratelimit-", "anthropic-ratelimit-")

_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')


async def follow(exchange: Exchange, reel: Reel, owner: str, replayed: bool) -> None:
    """Send it, from the first byte to the end.

    Args:
        exchange: the caller's.
        reel: of the answer.
        owner: the id of the request that is, or was, answered.
        replayed: it was answered before this request came.

    Raises:
        GatewayError: it broke off before this caller got anything.
    """
    sender = _Sender(exchange, reel, owner, replayed)
    try:
        await sender.send()
    except asyncio.CancelledError:
        line = exchange.lifeline
        if not exchange.response_started or not line.caught():
            raise
        if line.cut_by is Cut.SHUTDOWN:
            await sender.break_off(GatewayError.draining())


class _Sender:
    def __init__(self, exchange: Exchange, reel: Reel, owner: str, replayed: bool) -> None:
        self._exchange = exchange
        self._reel = reel
        self._owner = owner
        self._replayed = replayed
        self._streams = False
        self._last = b""

    async def send(self) -> None:
        """Send what there is, until it ends."""
        exchange, reel = self._exchange, self._reel
        try:
            with reel.listen() as listener:
                await reel.beyond(-1)
                if reel.head is None or reel.end in ("lost", "large"):
                    raise _broken(reel)
                await self._start(reel.head)
                while True:
                    part = await self._next(listener)
                    if reel.end in ("done", "failed") and listener.offset == reel.length:
                        await exchange.send({"type": "http.response.body", "body": part})
                        return
                    if not part:
                        break
                    self._last = part
                    exchange.lifeline.unread_since = time.monotonic()
                    await exchange.send_part(part)
                    exchange.lifeline.unread_since = None
        except (TornTape, TapesAway) as error:
            if not exchange.response_started:
                raise _broken(reel) from error
        await self.break_off(_broken(reel))

    async def break_off(self, error: GatewayError) -> None:
        """End a response that has begun. A stream says why; an answer that was to come whole is
        cut before the length that was announced."""
        if self._streams:
            tail = _in_band(self._exchange.endpoint, error.detail, self._last)
            await self._exchange.send({"type": "http.response.body", "body": tail})

    async def _start(self, head: Head) -> None:
        exchange = self._exchange
        own = exchange.id == self._owner
        headers = [
            (name, exchange.id if name in _IDS else value)
            for name, value in head.headers
            if own or not name.startswith(_LIMITS)
        ]
        if not own:
            headers.append(("x-original-request-id", self._owner))
        if self._replayed:
            headers.append(("idempotency-replayed", "true"))
        exchange.response_started = True
        self._streams = any(
            name == "content-type" and value.startswith("text/event-stream")
            for name, value in headers
        )
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        await exchange.send(
            {"type": "http.response.start", "status": head.status, "headers": encoded}
        )

    async def _next(self, listener: Listener) -> bytes:
        """The next bytes; while they keep a stream waiting, its client's heart beats."""
        line = self._exchange.lifeline
        line.silent_since = time.monotonic() if self._streams else None
        part = await listener.next()
        line.silent_since = None
        return part


def _broken(reel: Reel) -> GatewayError:
    """Why a reel does not go on to an end."""
    return too_large() if reel.end == "large" else lost()


def lost() -> GatewayError:
    """The generation is no more, or its tape can't be read."""
    detail = ErrorDetail(
        "The answer to this Idempotency-Key broke off; send the request again.",
        "service_unavailable_error",
        code="gateway_lost",
    )
    return GatewayError(503, detail, {"retry-after": "1"})


def too_large() -> GatewayError:
    """The answer was charged, and is too large to be kept for others than those who were there."""
    detail = ErrorDetail(
        "The answer to this Idempotency-Key was too large to be kept; it was charged and can't be"
        " replayed.",
        "invalid_request_error",
        "Idempotency-Key",
        "idempotency_result_too_large",
    )
    return GatewayError(409, detail, {"x-should-retry": "false"})


def _in_band(endpoint: Endpoint, detail: ErrorDetail, last: bytes) -> bytes:
    """An error event in the endpoint's format.

    Args:
        last: the bytes before it; Responses events go on counting from theirs.
    """
    if endpoint is Endpoint.MESSAGES:
        return error_event(detail)
    if endpoint is Endpoint.RESPONSES:
        numbers = _NUMBER.findall(last)
        return Events(int(numbers[-1]) + 1 if numbers else 0).error(detail)
    return sse.encode(detail.body())
