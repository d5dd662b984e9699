"""Inputs of batches, line by line: what is read, and what is refused with which number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.base import Endpoint
from sluice.gateway.batch.lines import MAX_EMBEDDING_INPUTS, LineReader, LineRefused, Scan

BODY = {"model": "m", "messages": [{"role": "user", "content": "ü"}]}


def line(custom_id: Any = "a", **changes: Any) -> dict[str, Any]:
    """A request's line; a change to None takes a member out."""
    whole = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": BODY,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def text(*lines: Any, end: bytes = b"\n") -> bytes:
    return end.join(json.dumps(each, ensure_ascii=False).encode() for each in lines) + end


def scanned(data: bytes, size: int = 7, max_line_bytes: int = 1 << 20) -> Scan:
    scan = Scan(max_line_bytes, keep=True)
    for start in range(0, len(data), size):
        scan.feed(data[start : start + size])
    scan.end()
    return scan


def refusal(data: bytes, **limits: int) -> LineRefused:
    with pytest.raises(LineRefused) as refused:
        scanned(data, **limits)
    return refused.value


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "data",
    [
        text(line("a"), line("b")),
        text(line("a"), line("b"), end=b"\r\n"),
        text(line("a"), line("b"))[:-1],
        b"\xef\xbb\xbf" + text(line("a"), line("b")),
        b"\n  \n" + text(line("a")) + b"\r\n\t\n" + text(line("b")) + b"\n\n",
    ],
    ids=["plain", "CRLF", "no final newline", "byte order mark", "blank lines"],
)
def test_items_are_where_they_say(data: bytes, size: int) -> None:
    scan = scanned(data, size)
    assert scan.end() == (Endpoint.CHAT, "m")
    assert [item.custom_id for item in scan.items] == ["a", "b"]
    for item in scan.items:
        found = data[item.offset : item.offset + item.length]
        assert json.loads(found)["custom_id"] == item.custom_id
        assert data[: item.offset].count(b"\n") + 1 == item.line


@given(st.lists(st.binary(max_size=20)), st.integers(1, 30))
def test_lines_are_those_of_the_whole_text(parts: list[bytes], size: int) -> None:
    data = b"\n".join(parts)
    reader = LineReader(1 << 20)
    found = [
        each
        for start in range(0, len(data), size)
        for each in reader.feed(data[start : start + size])
    ]
    found += reader.end()
    assert all(data[each.offset :].startswith(each.text) for each in found)
    plain = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    stripped = [each.rstrip(b" \t\r") for each in plain]
    assert [(each.number, each.text) for each in found] == [
        (number, each) for number, each in enumerate(stripped, 1) if each
    ]


@pytest.mark.parametrize(
    ("bad", "param", "code"),
    [
        (line(None), "custom_id", "missing_required_parameter"),
        (line(7), "custom_id", "invalid_type"),
        (line(""), "custom_id", "invalid_custom_id"),
        (line("x" * 513), "custom_id", "invalid_custom_id"),
        (line("x\0"), "custom_id", "invalid_custom_id"),
        (line("first"), "custom_id", "duplicate_custom_id"),
        (line(method=None), "method", "missing_required_parameter"),
        (line(method="GET"), "method", "invalid_method"),
        (line(url=None), "url", "missing_required_parameter"),
        (line(url="/v1/nonsense"), "url", "invalid_url"),
        (line(url="/v1/embeddings"), "url", "mismatched_url"),
        (line(body=None), "body", "missing_required_parameter"),
        (line(body="text"), "body", "invalid_type"),
        (line(body={}), "body.model", "missing_required_parameter"),
        (line(body={"model": 5}), "body.model", "invalid_type"),
        (line(body={**BODY, "model": "other"}), "body.model", "mismatched_model"),
        (line(body={**BODY, "stream": True}), "body.stream", "unsupported_parameter"),
        ([1], None, "invalid_json_line"),
    ],
)
def test_a_bad_line_is_named(bad: Any, param: str | None, code: str) -> None:
    error = refusal(text(line("first"), line("second")) + b"\n" + text(bad))
    assert (error.line, error.param, error.code) == (4, param, code)
    assert str(error).startswith("Line 4: ")


def test_a_duplicate_names_the_first_one() -> None:
    error = refusal(text(line("one"), line("two"), line("one")))
    assert "`one`" in str(error)
    assert "line 1" in str(error)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"custom_id": "b", ', "not a valid JSON object"),
        (b"\xff\xfe", "not valid UTF-8 at byte 0"),
        (text(line("b"))[:-1].replace(b'"b"', b'"\xc3"'), "not valid UTF-8 at byte 15"),
        (b'{"a":' + b"[" * 100_000, "not a valid JSON object"),
    ],
)
def test_what_is_no_json_is_named(bad: bytes, reason: str) -> None:
    error = refusal(text(line("a")) + bad)
    assert (error.line, error.code) == (2, "invalid_json_line")
    assert reason in str(error)


def test_a_line_may_be_long_but_not_too_long() -> None:
    long = text(line("a", body={**BODY, "x": "y" * 900}))
    assert scanned(long, max_line_bytes=1100).count == 1
    for data in (long, long[:-1]):
        error = refusal(text(line("b")) + data, max_line_bytes=700)
        assert (error.line, error.code) == (2, "line_too_long")


def test_a_line_of_ten_megabytes() -> None:
    data = text(line("a", body={**BODY, "x": "y" * 10_000_000}), line("b"))
    assert scanned(data, 65_536, 32 << 20).count == 2


def test_fifty_thousand_requests_and_one_more() -> None:
    data = b"".join(text(line(str(number))) for number in range(50_000))
    assert scanned(data, 1 << 20).count == 50_000
    error = refusal(data + text(line("more")), size=1 << 20)
    assert (error.line, error.code) == (50_001, "too_many_requests")


def test_a_file_that_is_too_large() -> None:
    scan = Scan(1 << 20, keep=True, max_bytes=500)
    with pytest.raises(LineRefused, match="at most 500 bytes"):
        scan.feed(text(*(line(str(number)) for number in range(10))))


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_requests(data: bytes) -> None:
    error = refusal(data)
    assert (error.line, error.code) == (None, "empty_file")


def test_texts_to_embed_are_counted() -> None:
    def embed(custom_id: str, given: Any) -> dict[str, Any]:
        return line(custom_id, url="/v1/embeddings", body={"model": "e", "input": given})

    half = MAX_EMBEDDING_INPUTS // 2
    tokens = list(range(60_000))
    data = text(embed("a", ["x"] * half), embed("b", ["x"] * (half - 1)), embed("c", tokens))
    assert scanned(data, 1 << 16).end() == (Endpoint.EMBEDDINGS, "e")
    error = refusal(data + text(embed("d", "one more")), size=1 << 16)
    assert (error.line, error.code) == (4, "too_many_inputs")
