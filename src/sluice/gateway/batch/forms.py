"""Multipart forms, read as they arrive: fields, and the content of one file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from sluice.gateway.errors import GatewayError

#: All fields together, in bytes.
MAX_FIELD_BYTES = 64 * 1024

#: Parts of a form.
MAX_PARTS = 64


def form_boundary(content_type: str) -> str | None:
    """The boundary of a form; None: the body is no form.

    Raises:
        GatewayError: it is one, without a boundary.
    """
    kind, options = parse_options_header(content_type)
    if kind.lower() != "multipart/form-data":
        return None
    boundary = options.get("boundary")
    if not boundary:
        raise GatewayError.invalid("The form has no boundary.", "content-type", "invalid_header")
    return str(boundary)


class Form:
    """A form; see the module.

    Attributes:
        fields: those that were read so far, by name. All are there when `file` is at its end.
        filename: the file's, from its first byte on; None before, and where there is none.
    """

    def __init__(self, chunks: AsyncIterator[bytes], boundary: str) -> None:
        self._chunks = chunks
        self._parser = PushMultipartParser(
            boundary, max_segment_count=MAX_PARTS, max_header_size=8192
        )
        self._field_bytes = 0
        self.fields: dict[str, str] = {}
        self.filename: str | None = None

    async def file(self) -> AsyncIterator[bytes]:
        """The content of the file, which is the part with the name `file`.

        Raises:
            GatewayError: the form is malformed, has a second file or none, or too much in fields.
        """
        segment: MultipartSegment | None = None
        value = bytearray()
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    if isinstance(event, MultipartSegment):
                        segment, value = event, bytearray()
                        self._begin(event)
                    elif segment is not None and segment.name == "file":
                        if event:
                            yield bytes(event)
                    elif event is not None:
                        self._count(len(event))
                        value += event
                    elif segment is not None:
                        self.fields[segment.name or ""] = value.decode()
        except (MultipartError, UnicodeDecodeError) as error:
            raise GatewayError.invalid(
                f"The form is malformed: {error}.", code="invalid_body"
            ) from None
        if self.filename is None:
            raise GatewayError.invalid("`file` is required.", "file", "missing_required_parameter")

    def _begin(self, segment: MultipartSegment) -> None:
        if segment.name == "file":
            if self.filename is not None:
                raise GatewayError.invalid("There is more than one `file`.", "file")
            self.filename = segment.filename or "file"
        else:
            self._count(len(segment.name or ""))

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > MAX_FIELD_BYTES:
            raise GatewayError.invalid("The form's fields are too large.", code="invalid_body")

    async def _events(self) -> AsyncGenerator[MultipartSegment | bytes | None, None]:
        async for chunk in self._chunks:
            for event in self._parser.parse(chunk):
                yield event
        self._parser.close()
