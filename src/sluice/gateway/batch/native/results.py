"""Providers' result lines. Each line stands for itself: one that is broken costs its own item the
result, and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.wire.objects import MalformedJSON, decode_object, mended


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request.

    Attributes:
        name: the request's `custom_id` at the provider.
        status: the HTTP status that it would have had; None: it was not run.
        body: of the answer or of the error; empty where there is none.
        reason: why it was not run.
    """

    name: str
    status: int | None
    body: bytes = b""
    reason: str = ""


#: Nothing is longer than the longest answer (see `dispatch`) and what is around it.
MAX_LINE_BYTES = 65 * 1024 * 1024


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a text that comes in chunks, without the blank ones. One that is far too long
    is given in pieces, none of which can be read."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        *whole, rest = held.split(b"\n") if b"\n" in chunk else [held]
        if len(rest) > MAX_LINE_BYTES:
            whole, rest = [*whole, rest], bytearray()
        held = rest
        for line in whole:
            if stripped := bytes(line).strip():
                yield stripped
    if stripped := bytes(held).strip():
        yield stripped


class _OpenAIResponse(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")


class _OpenAIError(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _OpenAILine(msgspec.Struct):
    custom_id: str
    response: _OpenAIResponse | None = None
    error: _OpenAIError | None = None


class _AnthropicResult(msgspec.Struct):
    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _AnthropicLine(msgspec.Struct):
    custom_id: str
    result: _AnthropicResult


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class _AnthropicError(msgspec.Struct):
    error: _Kind = _Kind()


_openai = msgspec.json.Decoder(_OpenAILine)
_anthropic = msgspec.json.Decoder(_AnthropicLine)
_anthropic_error = msgspec.json.Decoder(_AnthropicError)

#: The status that an error of Anthropic's comes with, by its type.
_STATUSES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}

#: What can be wrong with a line.
_UNREADABLE = (MalformedJSON, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def read_openai_line(line: bytes) -> Outcome | None:
    """A line of OpenAI's output or error file; None: it can't be read."""
    try:
        decode_object(line)  # finds what isn't UTF-8
        found = mended(_openai, line)
    except _UNREADABLE:
        return None
    if found.response is not None:
        return Outcome(found.custom_id, found.response.status_code, bytes(found.response.body))
    error = found.error or _OpenAIError()
    return Outcome(found.custom_id, None, reason=error.code or error.message or "not run")


def read_anthropic_line(line: bytes) -> Outcome | None:
    """A line of Anthropic's results; None: it can't be read."""
    try:
        decode_object(line)
        found = mended(_anthropic, line)
        result = found.result
        if result.type == "succeeded":
            return Outcome(found.custom_id, 200, bytes(result.message))
        if result.type == "errored":
            kind = mended(_anthropic_error, bytes(result.error)).error.type
            return Outcome(found.custom_id, _STATUSES.get(kind, 500), bytes(result.error))
    except _UNREADABLE:
        return None
    return Outcome(found.custom_id, None, reason=result.type)
