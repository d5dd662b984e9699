"""The relay: what an upstream streams goes to the client, event by event and at once.

The end is kept back. A relay gives an ending, whose bytes are sent only after the usage event is
durable: a client never sees an answer finish that could go uncharged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.backends.base import BackendError, Endpoint
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.router.dispatch import StreamStart
from sluice.wire.codec import Chained
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_errors import messages_error_body, messages_status

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class WholeEnding(msgspec.Struct, frozen=True):
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
        await exchange.respond(error_status(exchange, error), error_body(exchange, error), more)


def error_body(exchange: Exchange, error: GatewayError) -> bytes:
    """An error's body in the format of the endpoint that was called."""
    if exchange.endpoint is Endpoint.MESSAGES:
        return messages_error_body(error.status, error.detail, exchange.id)
    return error.body()


def error_status(exchange: Exchange, error: GatewayError) -> int:
    """An error's status as clients of the endpoint know it."""
    if exchange.endpoint is Endpoint.MESSAGES:
        return messages_status(error.status)
    return error.status


def ending_response(exchange: Exchange, ending: Ending) -> dict[str, Any] | None:
    """The response object of a Responses answer that ended well; None for everything else."""
    if exchange.endpoint is not Endpoint.RESPONSES:
        return None
    if isinstance(ending, WholeEnding):
        response: dict[str, Any] = msgspec.json.decode(ending.body)
        return response
    codec = exchange.stream
    if isinstance(ending, StreamEnding) and codec is not None:
        return getattr(codec.outer if isinstance(codec, Chained) else codec, "response", None)
    return None


@dataclass(frozen=True, slots=True)
class NoEnding:
    """Nobody is there to hear it."""

    async def send(self, exchange: Exchange) -> None:
        """Nothing."""


Ending = WholeEnding | StreamEnding | ErrorEnding | NoEnding


async def relay_stream(exchange: Exchange, start: StreamStart, head: bytes) -> Ending:
    """Relay a stream up to, and without, its end.

    Args:
        exchange: whose client gets it, and which learns how it ended.
        start: the stream, with its first token.
        head: what the client gets of that.
    """
    stream, response, line = start.stream, start.response, exchange.lifeline
    between_tokens = start.deployment.timeouts.between_tokens
    exchange.first_token_at = time.monotonic()
    line.unread_since = exchange.first_token_at
    await exchange.start_response(200, EVENT_STREAM, _STREAM_HEADERS)
    await exchange.send_part(head)
    while not (stream.done or stream.failure is not None):
        now = line.silent_since = time.monotonic()
        line.unread_since = None
        exchange.last_token_at = now
        line.next_piece_by = now + between_tokens
        try:
            piece = await response.next()
        except BackendError as error:
            stream.failure = ErrorDetail(str(error), code=error.code)
            break
        # While the client does not take what there is, the upstream is not the one that is late.
        line.silent_since = line.next_piece_by = None
        line.unread_since = time.monotonic()
        await exchange.send_part(stream.feed(piece) if piece else stream.end())
    line.next_piece_by = line.silent_since = line.unread_since = None
    usage = stream.usage(start.prompt_characters)
    if stream.failure is not None:
        failure = start.clean(stream.failure)
        start.broke(stream.failure)
        exchange.ended("upstream_error", usage, failure.code or "upstream_error")
        return ErrorEnding(GatewayError(502, failure))
    exchange.ended("ok", usage)
    return StreamEnding(stream.tail())
