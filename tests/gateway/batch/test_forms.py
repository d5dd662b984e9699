"""Forms as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sluice.gateway.batch.forms import MAX_FIELD_BYTES, Form, form_boundary
from sluice.gateway.errors import GatewayError


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


async def chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(data: bytes, size: int = 5) -> tuple[Form, bytes]:
    form = Form(chunks(data, size), "XX")
    return form, b"".join([chunk async for chunk in form.file()])


CONTENT = b"--X\r\n\r\n--Y" * 20


@pytest.mark.parametrize("size", [1, 5, 10_000])
async def test_fields_may_be_before_the_file_and_behind_it(size: int) -> None:
    data = (
        part("purpose", b"batch")
        + part("file", CONTENT, "a.jsonl")
        + part("x", "ü".encode())
        + b"--XX--\r\n"
    )
    form, content = await read(data, size)
    assert content == CONTENT
    assert form.fields == {"purpose": "batch", "x": "ü"}
    assert form.filename == "a.jsonl"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (part("purpose", b"batch") + b"--XX--\r\n", "`file` is required"),
        (part("file", b"a", "a") + part("file", b"b", "b") + b"--XX--", "more than one"),
        (part("file", b"a", "a"), "malformed"),
        (b"nonsense" * 20, "malformed"),
        (part("file", b"a", "a") + part("x", b"\xff") + b"--XX--", "malformed"),
        (part("x", b"y" * (MAX_FIELD_BYTES + 1)) + b"--XX--", "too large"),
    ],
)
async def test_forms_that_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(GatewayError, match=reason):
        await read(data)


def test_boundaries() -> None:
    assert form_boundary('multipart/form-data; boundary="a b"') == "a b"
    assert form_boundary("application/json") is None
    assert form_boundary("") is None
    with pytest.raises(GatewayError, match="boundary"):
        form_boundary("multipart/form-data")
