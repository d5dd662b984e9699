"""What a codec is: one request's translation between a client's format and an upstream's.

The hub of all translations is OpenAI's chat format. A codec towards an upstream turns a chat
request into the upstream's and the upstream's answer into a chat answer; a codec towards a client
turns the client's request into a chat request and a chat answer into the client's. The two chain
(`Chained`), so that n formats of clients and m of upstreams take n + m codecs. Where both sides
speak the same format nothing is translated: events pass byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import msgspec

from sluice.wire import sse
from sluice.wire.errors import ErrorDetail
from sluice.wire.objects import MalformedJSON
from sluice.wire.usage import Usage


class StreamCodec(Protocol):
    """An upstream's stream on its way to a client's format. Pure: bytes in, bytes out.

    Attributes:
        failure: set once the stream can't be a complete answer any more; nothing more comes out.
        has_content: a generated token (text, reasoning, refusal or tool call) has been seen.
        done: the upstream said that the answer is complete.
    """

    failure: ErrorDetail | None

    @property
    def has_content(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    def feed(self, piece: bytes) -> bytes:
        """Bytes from the upstream, split anywhere; gives those for the client. What ends the
        answer for the client is kept back for `tail`."""
        ...

    def end(self) -> bytes:
        """The upstream closed its response cleanly: the last bytes before the tail, if any. An
        end before the answer was complete sets `failure`."""
        ...

    def tail(self) -> bytes:
        """The closing events of a complete answer. Sent once its charge is durable."""
        ...

    def usage(self, prompt_characters: int) -> Usage:
        """What was used until now, as reported or else estimated.

        Args:
            prompt_characters: length of the prompt, for the estimate.
        """
        ...

    def error(self, status: int, detail: ErrorDetail) -> bytes:
        """An in-band error in the client's format, ending the stream without `tail`."""
        ...


BROKEN = ErrorDetail(
    "the upstream's stream ended before the answer was complete", code="upstream_connection_lost"
)
UNREADABLE_EVENT = ErrorDetail(
    "the upstream sent an event that can't be read", code="upstream_invalid_response"
)

_UNREADABLE = (msgspec.DecodeError, MalformedJSON, RecursionError, UnicodeDecodeError)


class EventCodec(ABC):
    """What codecs of upstream streams have in common; see `StreamCodec` for the members.

    A subclass takes one event after the other. After a failure, and after the end, nothing more
    is taken.
    """

    def __init__(self) -> None:
        self.failure: ErrorDetail | None = None
        self.has_content = False
        self.done = False
        self._parser = sse.Parser()

    def feed(self, piece: bytes) -> bytes:
        """See `StreamCodec`."""
        try:
            events = self._parser.feed(piece)
        except sse.SSEError as error:
            self.failure = ErrorDetail(str(error), code="upstream_invalid_response")
            return b""
        return self._take_all(events)

    def end(self) -> bytes:
        """See `StreamCodec`."""
        out = self._take_all(self._parser.flush())
        if not self.done and self.failure is None:
            self._close()
        return out

    @abstractmethod
    def _take(self, data: bytes, name: bytes) -> bytes:
        """One event's data, on one line; gives the bytes for the client.

        What it raises of unreadable JSON fails the stream.
        """

    def _close(self) -> None:
        """The stream ended, by its end marker or by itself; a failure unless all was there."""
        self.failure = BROKEN

    def _take_all(self, events: list[sse.Event]) -> bytes:
        out: list[bytes] = []
        for event in events:
            if self.done or self.failure is not None:
                break
            if event.data == sse.DONE:
                self._close()
                continue
            try:
                out.append(self._take(event.data.replace(b"\n", b" "), event.name))
            except _UNREADABLE:
                self.failure = UNREADABLE_EVENT
        return b"".join(out)


class ClientStream(Protocol):
    """A chat stream on its way to another client format: the outer half of a chain.

    It is fed well-formed chat events only (the inner half has checked them): a role, content,
    reasoning and tool-call deltas, one `finish_reason` a choice, at last a usage chunk with
    empty `choices`, and `data: [DONE]`.

    Attributes:
        failure: set where a chat event can't be had in the client's format.
    """

    failure: ErrorDetail | None

    def feed(self, piece: bytes) -> bytes:
        """Chat events, split anywhere; gives the client's events."""
        ...

    def tail(self) -> bytes:
        """What is left to send after `[DONE]` was fed."""
        ...

    def error(self, detail: ErrorDetail) -> bytes:
        """An in-band error in the client's format, ending the stream."""
        ...


class Chained:
    """An upstream's codec into chat, then one from chat into the client's format."""

    def __init__(self, inner: StreamCodec, outer: ClientStream) -> None:
        self._inner = inner
        self.outer = outer

    @property
    def failure(self) -> ErrorDetail | None:
        """See `StreamCodec`."""
        return self._inner.failure or self.outer.failure

    @failure.setter
    def failure(self, detail: ErrorDetail | None) -> None:
        self._inner.failure = detail

    @property
    def has_content(self) -> bool:
        """See `StreamCodec`."""
        return self._inner.has_content

    @property
    def done(self) -> bool:
        """See `StreamCodec`."""
        return self._inner.done

    def feed(self, piece: bytes) -> bytes:
        """See `StreamCodec`."""
        return self.outer.feed(self._inner.feed(piece))

    def end(self) -> bytes:
        """See `StreamCodec`."""
        return self.outer.feed(self._inner.end())

    def tail(self) -> bytes:
        """See `StreamCodec`."""
        return self.outer.feed(self._inner.tail()) + self.outer.tail()

    def usage(self, prompt_characters: int) -> Usage:
        """See `StreamCodec`."""
        return self._inner.usage(prompt_characters)

    def error(self, status: int, detail: ErrorDetail) -> bytes:
        """See `StreamCodec`."""
        return self.outer.error(detail)
