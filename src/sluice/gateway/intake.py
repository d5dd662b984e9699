"""Intake: the bytes of a request, received with limits and read into a checked request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Literal, cast

import msgspec

from sluice.backends.base import Endpoint, Priority
from sluice.gateway.auth import Principal
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.router.catalog import Tier
from sluice.router.translation import Conversation
from sluice.wire.embeddings import Encoding, check_embeddings
from sluice.wire.errors import ErrorDetail, InvalidRequest
from sluice.wire.messages_request import check_version, read_messages_request
from sluice.wire.request import Request, check_chat, check_completion, read_request
from sluice.wire.responses_request import read_responses_request

#: The server stops waiting for a body on a thread of its own, a moment after we have. An answer
#: that overtook it would leave the connection open for as long as the client likes, in seconds.
LET_GO_SECONDS = 0.05

#: For how long what follows a body that is too large is read, in seconds.
DISCARD_SECONDS = 1.0

#: Headers that belong to an Anthropic client's body, and travel with it.
_TRAVELLING = (b"anthropic-version", b"anthropic-beta")


class ClientLeft(Exception):
    """The client went away while it was still sending, or what it sent is no HTTP."""


class Received(msgspec.Struct, frozen=True):
    """A request as it was read.

    Attributes:
        body: its JSON text.
        encoding: for embeddings, the encoding that the client wants.
        headers: that travel with the body to an upstream of the client's own format.
        conversation: that it continues, of Responses, once it was looked up.
    """

    request: Request
    tier: Tier
    body: bytes
    encoding: Encoding | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    conversation: Conversation | None = None

    def continuing(self, conversation: Conversation) -> Received:
        """The same with what it continues: its prompt is as long as what a model will be given,
        and has its images."""
        request = self.request
        if conversation.stored:
            request = msgspec.structs.replace(
                request,
                prompt_characters=request.prompt_characters + conversation.characters,
                images=request.images or conversation.images,
            )
        return msgspec.structs.replace(self, request=request, conversation=conversation)


async def receive_body(exchange: Exchange, limit: int, seconds: float) -> bytes:
    """The request's body, of at most `limit` bytes, for which the client has so many seconds.

    Raises:
        GatewayError: too large, or encoded in a way that is not understood.
        ClientLeft: the client went away before it was complete.
    """
    if exchange.header(b"content-encoding") not in (None, b"identity"):
        raise GatewayError.invalid(
            "Compressed request bodies are not accepted.", code="unsupported_encoding", status=415
        )
    length = exchange.header(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        await _discard(exchange, limit)
        raise _too_large(limit)
    exchange.lifeline.total_at = exchange.started + seconds
    body = await _all_parts(exchange, limit)
    exchange.lifeline.total_at = None
    return body


def too_slow() -> GatewayError:
    """The body did not come in time: the lifeline has cut the request."""
    return GatewayError.invalid(
        "The request body did not arrive in time.", code="timeout", status=408
    )


def broken_off() -> GatewayError:
    """What a client hears that is still there after `ClientLeft`."""
    return GatewayError.invalid(
        "The request body broke off, or its transfer coding is malformed.", code="invalid_body"
    )


def read_body(exchange: Exchange, principal: Principal, body: bytes) -> Received:
    """The checked request in a body.

    Raises:
        GatewayError: with the parameter named.
    """
    encoding: Encoding | None = None
    headers: dict[str, str] = {}
    try:
        request = _READERS[exchange.endpoint](body)
        if exchange.endpoint is Endpoint.EMBEDDINGS:
            encoding = check_embeddings(request)
        elif exchange.endpoint is Endpoint.MESSAGES:
            headers = {
                name.decode(): value.decode("latin-1")
                for name in _TRAVELLING
                if (value := exchange.header(name)) is not None
            }
            check_version(request, headers.get("anthropic-version"))
    except InvalidRequest as error:
        raise GatewayError.of_request(error) from None
    _check_team(exchange, principal, request)
    return Received(request, _tier(exchange, request), body, encoding, headers)


def _read_chat(body: bytes) -> Request:
    request = read_request(body, "messages")
    check_chat(request)
    return request


def _read_completion(body: bytes) -> Request:
    request = read_request(body, "prompt")
    check_completion(request)
    return request


def _read_input(body: bytes) -> Request:
    return read_request(body, "input")


_READERS: Mapping[Endpoint, Callable[[bytes], Request]] = {
    Endpoint.CHAT: _read_chat,
    Endpoint.COMPLETIONS: _read_completion,
    Endpoint.EMBEDDINGS: _read_input,
    Endpoint.MODERATIONS: _read_input,
    Endpoint.MESSAGES: read_messages_request,
    Endpoint.RESPONSES: read_responses_request,
}


async def _all_parts(exchange: Exchange, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            await _discard(exchange, limit)
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _discard(exchange: Exchange, limit: int) -> None:
    """Read on for a moment, to nobody's use: a client hears nothing of a refusal whose connection
    is closed while it still sends."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size <= limit:
                message = await exchange.receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def _too_large(limit: int) -> GatewayError:
    detail = ErrorDetail(
        f"The request body exceeds {limit} bytes.", "request_too_large", None, "request_too_large"
    )
    return GatewayError(413, detail)


def _tier(exchange: Exchange, request: Request) -> Tier:
    """The tier asked for, in the body or by header."""
    given = exchange.header(b"x-tier")
    tier = request.tier or (given.decode("latin-1") if given else "interactive")
    if tier not in ("interactive", "batch"):
        raise GatewayError.invalid(
            "`x-tier` must be interactive or batch.", "x-tier", "invalid_value"
        )
    return cast("Literal['interactive', 'batch']", tier)


def requested_priority(exchange: Exchange) -> Priority:
    """How urgent the request is among the team's, by header.

    Raises:
        GatewayError: there is no such priority.
    """
    given = exchange.header(b"x-priority")
    if given is None:
        return "high"  # as urgent as its team may be
    priority = given.decode("latin-1")
    if priority not in ("high", "normal", "low"):
        raise GatewayError.invalid(
            "`x-priority` must be high, normal or low.", "x-priority", "invalid_value"
        )
    return cast("Priority", priority)


def _check_team(exchange: Exchange, principal: Principal, request: Request) -> None:
    """A team that is named must be the key's own."""
    header = exchange.header(b"x-team-id")
    for named in (request.team_id, header and header.decode("latin-1")):
        if named is not None and named not in (principal.team_id, principal.team_name):
            raise GatewayError.forbidden("`x-team-id` is not the key's team.", "x-team-id")
