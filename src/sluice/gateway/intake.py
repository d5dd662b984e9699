"""Intake: the bytes of a request, received with limits and read into a checked request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from sluice.backends.base import Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange
from sluice.router.catalog import Tier
from sluice.wire.embeddings import Encoding, check_embeddings
from sluice.wire.errors import ErrorDetail, InvalidRequest
from sluice.wire.request import Request, check_chat, check_completion, read_request

#: How long a client may take to send its body, in seconds.
BODY_SECONDS = 60.0

_PROMPT = {Endpoint.CHAT: "messages", Endpoint.COMPLETIONS: "prompt", Endpoint.EMBEDDINGS: "input"}


class ClientLeft(Exception):
    """The client went away while it was still sending."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it was read.

    Attributes:
        encoding: for embeddings, the encoding that the client wants.
    """

    request: Request
    tier: Tier
    encoding: Encoding | None = None


async def receive_body(exchange: Exchange, limit: int) -> bytes:
    """The request's body, of at most `limit` bytes.

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
        raise _too_large(limit)
    exchange.lifeline.total_at = exchange.started + BODY_SECONDS
    body = await _all_parts(exchange, limit)
    exchange.lifeline.total_at = None
    return body


def too_slow() -> GatewayError:
    """The body did not come within `BODY_SECONDS`: the lifeline has cut the request."""
    return GatewayError.invalid(
        "The request body did not arrive in time.", code="timeout", status=408
    )


def read_body(exchange: Exchange, principal: Principal, body: bytes) -> Received:
    """The checked request in a body.

    Raises:
        GatewayError: with the parameter named.
    """
    endpoint = exchange.endpoint
    encoding: Encoding | None = None
    try:
        request = read_request(body, _PROMPT[endpoint])
        if endpoint is Endpoint.CHAT:
            check_chat(request)
        elif endpoint is Endpoint.COMPLETIONS:
            check_completion(request)
        else:
            encoding = check_embeddings(request)
    except InvalidRequest as error:
        raise GatewayError.of_request(error) from None
    _check_team(exchange, principal, request)
    return Received(request, _tier(exchange, request), encoding)


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
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


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


def _check_team(exchange: Exchange, principal: Principal, request: Request) -> None:
    """A team that is named must be the key's own."""
    header = exchange.header(b"x-team-id")
    for named in (request.team_id, header and header.decode("latin-1")):
        if named is not None and named not in (principal.team_id, principal.team_name):
            raise GatewayError.forbidden("`x-team-id` is not the key's team.", "x-team-id")
