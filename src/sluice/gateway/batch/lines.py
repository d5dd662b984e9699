"""The lines of a batch's input: JSONL, read as its bytes arrive, each line checked and numbered.

No input and output here. A `LineReader` makes lines of bytes; a `Checker` reads a request off each
and knows what makes them one batch. Whatever is wrong raises, so that nothing is half accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from sluice.backends.base import Endpoint
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, mended

MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
MAX_CUSTOM_ID = 512

#: Texts to embed in one batch.
MAX_EMBEDDING_INPUTS = 50_000

#: The operations that a batch may be of, by the `url` of its lines.
URLS = {
    f"/v1/{endpoint.value}": endpoint
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES)
}

_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r"


class LineRefused(Exception):
    """A line, or the file from this line on, is not what a batch may be made of.

    Attributes:
        line: its number, from 1; None: it is the file as a whole.
        param: the member at fault, or None.
        code: machine-readable reason.
    """

    def __init__(self, line: int | None, reason: str, param: str | None, code: str) -> None:
        super().__init__(reason if line is None else f"Line {line}: {reason}")
        self.line = line
        self.param = param
        self.code = code


class Line(NamedTuple):
    """A line that isn't blank.

    Attributes:
        number: from 1, blank lines counted.
        offset: of its first byte in the file.
        text: without the line's end.
    """

    number: int
    offset: int
    text: bytes


class InputLine(NamedTuple):
    """A request of a batch, and where its text is in the file."""

    line: int
    custom_id: str
    offset: int
    length: int


class LineReader:
    """Makes lines of bytes that arrive in chunks of any size.

    A byte order mark at the beginning, line ends of either kind, blank lines and a last line
    without an end are all read as they are meant.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._held = bytearray()
        self._number = 0
        self._offset = 0
        self._scanned = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that are complete with a chunk; to be taken before the next one.

        Raises:
            LineRefused: a line is too long.
        """
        held = self._held
        held += chunk
        start = 0
        while (end := held.find(b"\n", max(start, self._scanned))) >= 0:
            if (line := self._line(bytes(held[start:end]))) is not None:
                yield line
            self._offset += end + 1 - start
            start = end + 1
        del held[:start]
        self._scanned = len(held)
        if len(held) > self._max_line_bytes:
            self._number += 1
            raise self._too_long()

    def end(self) -> Iterator[Line]:
        """The last line, where it has no end of its own.

        Raises:
            LineRefused: it is too long.
        """
        if self._held and (line := self._line(bytes(self._held))) is not None:
            yield line
        self._held.clear()

    def _line(self, text: bytes) -> Line | None:
        self._number += 1
        offset = self._offset
        if self._number == 1 and text.startswith(_BOM):
            text = text[len(_BOM) :]
            offset += len(_BOM)
        if len(text) > self._max_line_bytes:
            raise self._too_long()
        kept = text.rstrip(_BLANKS)
        return Line(self._number, offset, kept) if kept else None

    def _too_long(self) -> LineRefused:
        return LineRefused(
            self._number, f"is longer than {self._max_line_bytes} bytes.", None, "line_too_long"
        )


class _Body(msgspec.Struct):
    """A request's body, as far as it decides what a batch is."""

    model: Any = None
    stream: Any = None
    input: msgspec.Raw = msgspec.Raw(b"null")


_string = msgspec.json.Decoder(str)
_body = msgspec.json.Decoder(_Body)
_inputs = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class Checker:
    """Reads requests off lines, and holds them against those before.

    Attributes:
        endpoint, model: of all lines, once there was one.
        count: of the requests so far.
    """

    endpoint: Endpoint | None = None
    model: str = ""
    count: int = 0
    _inputs: int = 0
    _seen: dict[str, int] = field(default_factory=dict)

    def check(self, line: Line) -> InputLine:
        """The request of a line.

        Raises:
            LineRefused: it is none, or doesn't belong to those before.
        """
        if self.count == MAX_LINES:
            raise LineRefused(
                line.number,
                f"A batch has at most {MAX_LINES} requests, and this is one more.",
                None,
                "too_many_requests",
            )
        members = _members(line)
        custom_id = self._custom_id(line.number, members)
        self._check_target(line.number, members)
        self._check_body(line.number, members)
        self.count += 1
        return InputLine(line.number, custom_id, line.offset, len(line.text))

    def whole(self) -> tuple[Endpoint, str]:
        """The endpoint and the model of a file that has been read to its end.

        Raises:
            LineRefused: it has no request.
        """
        if self.endpoint is None:
            raise LineRefused(None, "The file has no requests.", None, "empty_file")
        return self.endpoint, self.model

    def _custom_id(self, number: int, members: RawObject) -> str:
        custom_id = _text(number, members, "custom_id")
        if not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
            raise LineRefused(
                number,
                f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters, none of them NUL.",
                "custom_id",
                "invalid_custom_id",
            )
        first = self._seen.setdefault(custom_id, number)
        if first != number:
            raise LineRefused(
                number,
                f"`custom_id` `{custom_id}` is that of line {first}, too.",
                "custom_id",
                "duplicate_custom_id",
            )
        return custom_id

    def _check_target(self, number: int, members: RawObject) -> None:
        if _text(number, members, "method") != "POST":
            raise LineRefused(number, "`method` must be POST.", "method", "invalid_method")
        url = _text(number, members, "url")
        endpoint = URLS.get(url)
        if endpoint is None:
            known = ", ".join(f"`{each}`" for each in URLS)
            raise LineRefused(number, f"`url` must be one of {known}.", "url", "invalid_url")
        if self.endpoint is None:
            self.endpoint = endpoint
        elif endpoint is not self.endpoint:
            raise LineRefused(
                number,
                f"`url` is `{url}`, and that of the lines before `/v1/{self.endpoint.value}`.",
                "url",
                "mismatched_url",
            )

    def _check_body(self, number: int, members: RawObject) -> None:
        body = _read_body(number, _given(number, members, "body"))
        if body.stream:
            raise LineRefused(
                number, "`stream` can't be true in a batch.", "body.stream", "unsupported_parameter"
            )
        model = body.model
        if not isinstance(model, str) or not model:
            raise LineRefused(
                number,
                "`body.model` is required, and must be a string.",
                "body.model",
                "missing_required_parameter" if model is None else "invalid_type",
            )
        if not self.model:
            self.model = model
        elif model != self.model:
            raise LineRefused(
                number,
                f"`body.model` is `{model}`, and that of the lines before `{self.model}`; a batch"
                " is of one model.",
                "body.model",
                "mismatched_model",
            )
        if self.endpoint is Endpoint.EMBEDDINGS:
            self._count_inputs(number, body.input)

    def _count_inputs(self, number: int, text: msgspec.Raw) -> None:
        try:
            inputs = _inputs.decode(text)
        except msgspec.DecodeError:
            inputs = []
        # a list of numbers is one text, as tokens
        several = bool(inputs) and bytes(inputs[0])[:1] in b'"['
        self._inputs += len(inputs) if several else 1
        if self._inputs > MAX_EMBEDDING_INPUTS:
            raise LineRefused(
                number,
                f"A batch embeds at most {MAX_EMBEDDING_INPUTS} inputs, and here are more.",
                "body.input",
                "too_many_inputs",
            )


def _members(line: Line) -> RawObject:
    try:
        return decode_object(line.text)
    except MalformedJSON as error:
        raise LineRefused(
            line.number, f"is not a valid JSON object: {error}.", None, "invalid_json_line"
        ) from None


def _given(number: int, members: RawObject, name: str) -> msgspec.Raw:
    value = members.get(name)
    if value is None or bytes(value) == b"null":
        raise LineRefused(number, f"`{name}` is missing.", name, "missing_required_parameter")
    return value


def _text(number: int, members: RawObject, name: str) -> str:
    try:
        return mended(_string, bytes(_given(number, members, name)))
    except msgspec.DecodeError:
        raise LineRefused(number, f"`{name}` must be a string.", name, "invalid_type") from None


def _read_body(number: int, text: msgspec.Raw) -> _Body:
    try:
        return mended(_body, bytes(text))
    except msgspec.DecodeError:
        reason = "`body` must be a JSON object."
    except RecursionError:
        reason = "`body` is nested too deeply."
    raise LineRefused(number, reason, "body", "invalid_type")


class Scan:
    """The requests of a file, read as its bytes arrive.

    Attributes:
        items: what was read, where that is wanted; else it stays empty.
        size: bytes so far.
    """

    def __init__(self, max_line_bytes: int, *, keep: bool, max_bytes: int = MAX_BYTES) -> None:
        """Args:
        max_line_bytes: of one line; requests that come alone have that limit, too.
        keep: collect the items.
        max_bytes: of all together.
        """
        self._reader = LineReader(max_line_bytes)
        self._checker = Checker()
        self._keep = keep
        self._max_bytes = max_bytes
        self.items: list[InputLine] = []
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        """Take a chunk.

        Raises:
            LineRefused: something in it is wrong.
        """
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise LineRefused(
                None, f"A batch's input has at most {self._max_bytes} bytes.", None, "too_large"
            )
        self._take(self._reader.feed(chunk))

    def end(self) -> tuple[Endpoint, str]:
        """The endpoint and the model of the whole file.

        Raises:
            LineRefused: the last line is wrong, or there was none.
        """
        self._take(self._reader.end())
        return self._checker.whole()

    @property
    def count(self) -> int:
        """How many requests there were."""
        return self._checker.count

    def _take(self, lines: Iterator[Line]) -> None:
        for line in lines:
            item = self._checker.check(line)
            if self._keep:
                self.items.append(item)
