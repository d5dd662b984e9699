"""Answers of upstreams that speak Responses themselves, made fit for a client that does too.

Events and bodies pass byte for byte, but for what names things inside of the response object:
the model, and ids of responses where the gateway has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from sluice.wire import sse
from sluice.wire.answer import UNREADABLE, Answer
from sluice.wire.codec import UNREADABLE_EVENT, EventCodec
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode, mended, raw
from sluice.wire.responses_answer import error_object
from sluice.wire.responses_stream import Events
from sluice.wire.usage import Usage, estimate_tokens

#: From an upstream's response id to ours.
Rename = Callable[[str], str]

_NULL = msgspec.Raw(b"null")
_CLOSING = ("response.completed", "response.incomplete")
_ID_MEMBERS = ("id", "previous_response_id")


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class ResponsesUsage(msgspec.Struct):
    """The `usage` object of Responses."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None

    def usage(self) -> Usage:
        """The same as our own value; a count below zero is none."""
        details = self.input_tokens_details or _InputDetails()
        return Usage(
            input_tokens=max(self.input_tokens or 0, 0),
            cached_input_tokens=max(details.cached_tokens or 0, 0),
            cache_write_tokens=max(details.cache_write_tokens or 0, 0),
            output_tokens=max(self.output_tokens or 0, 0),
        )


class _Response(msgspec.Struct):
    """What is read of a response object."""

    object: str | None = None
    status: str | None = None
    usage: ResponsesUsage | None = None
    error: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL


class _Event(msgspec.Struct):
    """What is read of an event."""

    type: str = ""
    sequence_number: int | None = None
    delta: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL


_events = msgspec.json.Decoder(_Event)
_responses = msgspec.json.Decoder(_Response)
_anything = msgspec.json.Decoder(dict[str, Any])


class _Renaming:
    """What changes inside of response objects."""

    def __init__(self, model: str, ids: Rename | None, members: Mapping[str, Any]) -> None:
        self._model = raw(model)
        self._ids = ids
        self._members = {name: raw(value) for name, value in members.items()}

    def apply(self, response: RawObject) -> bool:
        """Change an object in place; says whether anything had to be changed."""
        changes = {"model": self._model, **self._renamed(response), **self._members}
        different = {
            name: value
            for name, value in changes.items()
            if bytes(response.get(name, b"")) != bytes(value)
        }
        response |= different
        return bool(different)

    def _renamed(self, response: RawObject) -> RawObject:
        if self._ids is None:
            return {}
        found = {
            name: msgspec.json.decode(response[name]) for name in _ID_MEMBERS if name in response
        }
        return {
            name: raw(self._ids(value)) for name, value in found.items() if isinstance(value, str)
        }


class ResponsesPassStream(EventCodec):
    """The stream of an upstream with Responses, for a client of the same format.

    Attributes:
        failure: see `StreamCodec`.
        has_content: see `StreamCodec`.
        done: see `StreamCodec`.
        response: the response object as it ended; None before.
    """

    def __init__(
        self,
        model: str,
        ids: Rename | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the codec of one stream.

        Args:
            model: the name that the client asked for.
            ids: from the upstream's response ids to ours; without it they stay.
            members: members that response objects get whatever the upstream says, such as the
                `previous_response_id` of a conversation that the gateway holds.
        """
        super().__init__()
        self.response: dict[str, Any] | None = None
        self._renaming = _Renaming(model, ids, members or {})
        self._usage: Usage | None = None
        self._closing = b""
        self._latest: RawObject = {}
        self._next = 0
        self._characters = 0
        self._content_events = 0

    def tail(self) -> bytes:
        """See `StreamCodec`."""
        return self._closing

    def error(self, status: int, detail: ErrorDetail) -> bytes:
        """See `StreamCodec`. It ends the response as it was last seen.

        What the upstream said of its own failure was not passed on, so that clients see one
        account of it.
        """
        if not self._latest:
            return Events(self._next).error(detail)
        response = mended(_anything, encode(self._latest))
        response["status"] = "failed"
        response["error"] = error_object(detail)
        self.response = response
        return Events(self._next).failure(response, detail)

    def usage(self, prompt_characters: int) -> Usage:
        """See `StreamCodec`."""
        if self._usage is not None:
            return self._usage
        output = max(self._content_events, estimate_tokens(self._characters))
        return Usage(estimate_tokens(prompt_characters), output_tokens=output, estimated=True)

    def _take(self, data: bytes, name: bytes) -> bytes:
        event = mended(_events, data)
        if event.type == "error":
            self.failure = _error_of(data)
            return b""
        if event.sequence_number is not None:
            self._next = event.sequence_number + 1
        if bytes(event.response) != b"null":
            return self._take_response(data, name, event)
        self._note_content(event)
        return sse.encode(data, name)

    def _note_content(self, event: _Event) -> None:
        if event.type.endswith(".delta"):
            length = len(bytes(event.delta)) - 2  # without the quotes
            if length > 0:
                self.has_content = True
                self._characters += length
                self._content_events += 1
        elif event.type == "response.output_item.done":
            self.has_content = True

    def _take_response(self, data: bytes, name: bytes, event: _Event) -> bytes:
        found = mended(_responses, bytes(event.response))
        if found.usage is not None:
            self._usage = found.usage.usage()
        self._latest = decode_object(bytes(event.response))
        changed = self._renaming.apply(self._latest)
        kind = event.type
        if kind == "response.failed":
            self._next -= 1  # `error` says it
            self.failure = read_error(encode({"error": found.error})) or ErrorDetail(
                "the upstream's answer failed", code="upstream_error"
            )
            return b""
        if kind == "response.completed" and found.status == "incomplete":  # vLLM's way to end it
            kind = "response.incomplete"
            name = kind.encode() if name else name
        if changed or kind != event.type:
            members = decode_object(data)
            members |= {"type": raw(kind), "response": raw(self._latest)}
            data = encode(members)
        if kind not in _CLOSING:
            return sse.encode(data, name)
        self.response = mended(_anything, encode(self._latest))
        self._closing = sse.encode(data, name)
        self._next -= 1  # it wasn't sent
        self.done = True
        return b""


def _error_of(data: bytes) -> ErrorDetail:
    """The error of an error event, in either of its forms; the flat one has the event's type."""
    found = read_error(data) or UNREADABLE_EVENT
    return replace(found, type="server_error") if found.type == "error" else found


def read_pass_response(
    body: bytes,
    model: str,
    prompt_characters: int,
    ids: Rename | None = None,
    members: Mapping[str, Any] | None = None,
) -> Answer | ErrorDetail:
    """Read an upstream's 200 answer that is a whole response object.

    Args:
        body: as it came.
        model: the name that the client asked for.
        prompt_characters: length of the prompt, for an estimate where usage is missing.
        ids: see `ResponsesPassStream`.
        members: see `ResponsesPassStream`.

    Returns:
        The answer for the client, or what is wrong with it.
    """
    try:
        found = mended(_responses, body)
        response = decode_object(body)
        if bytes(found.error) != b"null" or found.status == "failed":
            return read_error(body) or UNREADABLE
        if found.object != "response" or bytes(found.output) == b"null":
            return UNREADABLE
        changed = _Renaming(model, ids, members or {}).apply(response)
    except (MalformedJSON, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNREADABLE
    usage = (
        found.usage.usage()
        if found.usage is not None
        else Usage(
            estimate_tokens(prompt_characters),
            output_tokens=estimate_tokens(len(bytes(found.output))),
            estimated=True,
        )
    )
    return Answer(encode(response) if changed else body, usage)
