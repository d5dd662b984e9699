"""Anthropic's Messages for clients of that format: nothing is translated.

Events pass byte for byte. Two things are the gateway's: the model's name, which is the alias that
the client asked for, and the end, which is kept back until it is charged. What is read on the way
(events, usage, errors) is defined here for the translating codecs, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire import sse
from sluice.wire.answer import UNREADABLE, Answer
from sluice.wire.codec import BROKEN, UNREADABLE_EVENT, EventCodec
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_errors import error_event
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode, mended, raw
from sluice.wire.usage import Usage, estimate_tokens

_NULL = msgspec.Raw(b"null")


class OutputDetails(msgspec.Struct):
    """`usage.output_tokens_details`."""

    thinking_tokens: int | None = None


class AnthropicUsage(msgspec.Struct):
    """The `usage` object of messages; every count is cumulative."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None
    service_tier: str | None = None

    def updated(self, newer: AnthropicUsage) -> AnthropicUsage:
        """With the counts that a later event reports."""
        counts: dict[str, Any] = {
            name: newest if (newest := getattr(newer, name)) is not None else getattr(self, name)
            for name in self.__struct_fields__
        }
        return AnthropicUsage(**counts)

    def usage(self) -> Usage:
        """The same as our own value: input counts what was cached, too."""
        written = max(self.cache_creation_input_tokens or 0, 0)
        read = max(self.cache_read_input_tokens or 0, 0)
        return Usage(
            input_tokens=max(self.input_tokens or 0, 0) + written + read,
            cached_input_tokens=read,
            cache_write_tokens=written,
            output_tokens=max(self.output_tokens or 0, 0),
        )

    @property
    def thinking_tokens(self) -> int:
        """Output tokens that were reasoning."""
        details = self.output_tokens_details
        return max(details.thinking_tokens or 0, 0) if details is not None else 0


class StopDetails(msgspec.Struct):
    """`stop_details` of a refusal."""

    explanation: str | None = None


class ErrorExplained(msgspec.Struct):
    """The `details` of an Anthropic error, by which clients tell what to do next."""

    error_code: str | None = None


class ErrorBody(msgspec.Struct):
    """The inside of an Anthropic error."""

    message: str = "unspecified error"
    type: str = "api_error"
    details: ErrorExplained | None = None


class ErrorEnvelope(msgspec.Struct):
    """An Anthropic error, as a body or in a stream."""

    error: ErrorBody


_envelopes = msgspec.json.Decoder(ErrorEnvelope)


def anthropic_error(body: bytes) -> ErrorDetail | None:
    """The error that an Anthropic body or event carries, under its own type; None if none."""
    try:
        error = mended(_envelopes, body).error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    code = None if error.details is None else error.details.error_code
    return ErrorDetail(error.message, error.type, None, code)


class Started(msgspec.Struct):
    """`message` of message_start."""

    id: str = ""
    model: str | None = None
    usage: AnthropicUsage | None = None


class Block(msgspec.Struct):
    """A content block, of a message or of content_block_start."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NULL


class Delta(msgspec.Struct):
    """`delta` of content_block_delta and of message_delta."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: StopDetails | None = None

    def length(self) -> int:
        """Characters generated."""
        return len(self.text or "") + len(self.thinking or "") + len(self.partial_json or "")


class StreamEvent(msgspec.Struct):
    """What is read of an event."""

    type: str = ""
    message: Started | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: AnthropicUsage | None = None
    error: msgspec.Raw = _NULL


class _Typed(msgspec.Struct):
    type: str = ""


_events = msgspec.json.Decoder(StreamEvent)
_types = msgspec.json.Decoder(_Typed)

# fmt: off
_KNOWN = frozenset((
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop", "error"
))
# fmt: on


def read_event(data: bytes) -> StreamEvent | None:
    """An event's data; None where it is an error or can't be read. One of a type that isn't
    known, whose members may be anything, is known by its type alone."""
    try:
        event = mended(_events, data)
        failed = event.type in ("", "error") or bytes(event.error) != b"null"
        return None if failed else event
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        kind = mended(_types, data).type
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return None if kind in _KNOWN or not kind else StreamEvent(kind)


class Meter:
    """What a stream of messages has used.

    Attributes:
        reported: the upstream's own counts until now; None before the first.
        has_content: a generated token has been seen.
    """

    def __init__(self) -> None:
        self.reported: AnthropicUsage | None = None
        self.has_content = False
        self._final = False
        self._characters = 0
        self._events = 0

    def note(self, event: StreamEvent) -> None:
        """Count an event."""
        if event.message is not None and event.message.usage is not None:
            self.reported = event.message.usage
        elif event.usage is not None:
            self.reported = (self.reported or AnthropicUsage()).updated(event.usage)
            self._final = event.usage.output_tokens is not None
        block, length = event.content_block, 0
        if block is not None:
            length = len(block.text or "") + len(block.thinking or "")
            length += len(block.name or "") + len(block.data or "")
        elif event.type == "content_block_delta" and event.delta is not None:
            length = event.delta.length()
        if length:
            self.has_content = True
            self._characters += length
            self._events += 1

    def usage(self, prompt_characters: int) -> Usage:
        """As reported or else estimated: until its end, a stream reports the input only."""
        if self.reported is None:
            known = Usage(estimate_tokens(prompt_characters))
        else:
            known = self.reported.usage()
            if self._final:
                return known
        seen = max(known.output_tokens, self._events, estimate_tokens(self._characters))
        return msgspec.structs.replace(known, output_tokens=seen, estimated=True)


class AnthropicPassStream(EventCodec):
    """A stream of messages for a client of that format. See `StreamCodec`.

    Attributes:
        failure: set once the stream can't be a complete answer any more, under the upstream's
            own type of error.
        has_content: a generated token has been seen.
        done: the upstream said that the answer is complete.
    """

    def __init__(self, model: str) -> None:
        """Args:
        model: the name that the client asked for.
        """
        super().__init__()
        self._model = model
        self._meter = Meter()
        self._ending: list[bytes] = []

    def tail(self) -> bytes:
        """See `StreamCodec`."""
        return b"".join(self._ending)

    def usage(self, prompt_characters: int) -> Usage:
        """See `StreamCodec`."""
        return self._meter.usage(prompt_characters)

    def error(self, status: int, detail: ErrorDetail) -> bytes:
        """See `StreamCodec`."""
        return error_event(detail)

    def _take(self, data: bytes, name: bytes) -> bytes:
        event = read_event(data)
        if event is None:
            self.failure = anthropic_error(data) or UNREADABLE_EVENT
            return b""
        if event.type == "message_stop" and not self._ending:  # an end without a reason is none
            self.failure = BROKEN
            return b""
        self._meter.note(event)
        self.has_content = self._meter.has_content
        if event.message is not None and event.message.model not in (None, self._model):
            data = _renamed_start(data, self._model)
        out = sse.encode(data, name or event.type.encode())
        stops = event.delta is not None and event.delta.stop_reason is not None
        self.done = event.type == "message_stop"
        if self._ending or stops or self.done:
            self._ending.append(out)
            return b""
        return out


def _renamed_start(data: bytes, model: str) -> bytes:
    event = decode_object(data)
    message = decode_object(bytes(event["message"]))
    message["model"] = raw(model)
    event["message"] = msgspec.Raw(encode(message))
    return encode(event)


class _Whole(msgspec.Struct):
    type: str = ""
    model: str | None = None
    usage: AnthropicUsage | None = None
    content: list[msgspec.Raw] = []


_wholes = msgspec.json.Decoder(_Whole)


def read_pass_message(body: bytes, model: str, prompt_characters: int = 0) -> Answer | ErrorDetail:
    """Read an upstream's 200 answer for a client of the same format.

    Args:
        body: as it came.
        model: the name that the client asked for.
        prompt_characters: length of the prompt, for an estimate where usage is missing.

    Returns:
        The answer, byte for byte unless it names another model, or what is wrong with it.
    """
    try:
        members: RawObject = decode_object(body)
        message = mended(_wholes, body)
    except (MalformedJSON, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return anthropic_error(body) or UNREADABLE
    if message.type != "message":
        return anthropic_error(body) or UNREADABLE
    if message.model != model:
        members["model"] = raw(model)
        body = encode(members)
    if message.usage is not None:
        return Answer(body, message.usage.usage())
    generated = estimate_tokens(sum(len(bytes(block)) for block in message.content))
    prompt = estimate_tokens(prompt_characters)
    return Answer(body, Usage(prompt, output_tokens=generated, estimated=True))
