"""The relay: what an upstream streams goes to the client, event by event and at once.

The end is kept back. A relay gives an ending, whose bytes are sent only after the usage event is
durable: a client never sees an answer finish that could go uncharged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sluice.backends.base import BackendError
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.router.dispatch import StreamStart
from sluice.wire.errors import ErrorDetail

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


@dataclass(frozen=True, slots=True)
class WholeEnding:
    """A JSON answer, not yet begun."""

    body: bytes

    async def send(self, exchange: Exchange) -> None:
        """Send it."""
        await exchange.respond(200, self.body)


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """The last bytes of a stream that has begun."""

    tail: bytes

    async def send(self, exchange: Exchange) -> None:
        """Send them, and end the response."""
        await exchange.send({"type": "http.response.body", "body": self.tail})


@dataclass(frozen=True, slots=True)
class ErrorEnding:
    """An error: a response of its own, or inside the stream that has begun."""

    error: GatewayError

    async def send(self, exchange: Exchange) -> None:
        """Send it. In a stream no end marker follows: an error is not a finished answer."""
        error = self.error
        if exchange.response_started and exchange.stream is not None:
            tail = exchange.stream.error(error.status, error.detail)
            await exchange.send({"type": "http.response.body", "body": tail})
            return
        more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await exchange.respond(error.status, error_body(exchange, error), more)


def error_body(exchange: Exchange, error: GatewayError) -> bytes:
    """An error's body in the format of the endpoint that was called."""
    return error.body()


@dataclass(frozen=True, slots=True)
class NoEnding:
    """Nobody is there to hear it."""

    async def send(self, exchange: Exchange) -> None:
        """Nothing."""


Ending = WholeEnding | StreamEnding | ErrorEnding | NoEnding


async def relay_stream(exchange: Exchange, start: StreamStart) -> Ending:
    """Relay a stream up to, and without, its end.

    Args:
        exchange: whose client gets it, and which learns how it ended.
        start: the stream, with its first token.
    """
    stream, response, line = start.stream, start.response, exchange.lifeline
    between_tokens = start.deployment.timeouts.between_tokens
    exchange.first_token_at = time.monotonic()
    await exchange.start_response(200, EVENT_STREAM, _STREAM_HEADERS)
    await exchange.send_part(start.head)
    while not (stream.done or stream.failure is not None):
        now = line.silent_since = time.monotonic()
        exchange.last_token_at = now
        line.next_piece_by = now + between_tokens
        try:
            piece = await response.next()
        except BackendError as error:
            stream.failure = ErrorDetail(str(error), code=error.code)
            break
        line.silent_since = None
        await exchange.send_part(stream.feed(piece) if piece else stream.end())
    line.next_piece_by = line.silent_since = None
    usage = stream.usage(start.prompt_characters)
    if stream.failure is not None:
        failure = start.clean(stream.failure)
        exchange.ended("upstream_error", usage, failure.code or "upstream_error")
        return ErrorEnding(GatewayError(502, failure))
    exchange.ended("ok", usage)
    return StreamEnding(stream.tail())
