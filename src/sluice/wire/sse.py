"""Server-sent events, parsed incrementally and without I/O.

Follows the event-stream grammar of the WHATWG HTML standard (section 9.2.6): lines end in LF,
CRLF or CR; a colon may or may not be followed by a space; comments and unknown fields are
ignored; an event without data is no event. Input may be split at any byte.
"""

from __future__ import annotations

from typing import NamedTuple

#: What ends a stream of OpenAI's family.
DONE = b"[DONE]"

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class SSEError(ValueError):
    """An event grew past the size that the parser accepts."""


class Event(NamedTuple):
    """One server-sent event: its data (lines joined by LF) and its name, if it had one."""

    data: bytes
    name: bytes = b""


def encode(data: bytes, name: bytes = b"") -> bytes:
    """The bytes of one event on the wire; `data` must not contain line ends."""
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


class Parser:
    """Turns a byte stream, fed in pieces of any size, into events."""

    __slots__ = ("_after_cr", "_buffer", "_max", "_start", "_started")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._buffer = b""
        self._after_cr = False
        self._start = b""
        self._started = False
        self._max = max_event_bytes

    def feed(self, piece: bytes) -> list[Event]:
        """Take the next bytes; give the events completed by them, in order.

        Raises:
            SSEError: an unfinished event is larger than `max_event_bytes`.
        """
        text = self._normalise(piece)
        if self._buffer:
            text = self._buffer + text
        *blocks, rest = text.split(b"\n\n")
        if len(rest) > self._max:
            raise SSEError(f"an event exceeds {self._max} bytes")
        self._buffer = rest
        return [event for block in blocks if (event := _parse_block(block)) is not None]

    def flush(self) -> list[Event]:
        """At the end of the input: the last event, if its closing blank line was left out."""
        block, self._buffer = self._buffer + (b"" if self._started else self._start), b""
        event = _parse_block(block)
        return [] if event is None else [event]

    def _normalise(self, piece: bytes) -> bytes:
        """Line ends become LF. A CR at the very end may be half of a CRLF: its LF is
        swallowed when it comes."""
        if not self._started:
            piece = self._start + piece
            if len(piece) < len(_BOM) and _BOM.startswith(piece):
                self._start = piece
                return b""
            self._started = True
            piece = piece.removeprefix(_BOM)
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece


def _parse_block(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # what nearly every upstream sends
        data = block[6:]
        return Event(data) if data else None
    name = b""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
    data = b"\n".join(lines)
    return Event(data, name) if data else None
