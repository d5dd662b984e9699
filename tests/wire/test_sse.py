"""Server-sent events against a reference parser, line by line as the standard has it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.sse import Event, Parser, SSEError, encode
from tests.wire.pieces import cuts, split


def reference(data: bytes) -> list[Event]:
    """WHATWG HTML, 9.2.6, over the whole text at once; a last event may lack its blank line."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[Event] = []
    name, lines = b"", []
    for line in [*text.split(b"\n"), b""]:
        if line:
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value
            continue
        if b"\n".join(lines):
            events.append(Event(b"\n".join(lines), name))
        name, lines = b"", []
    return events


def parse(pieces: list[bytes]) -> list[Event]:
    parser = Parser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.flush()


line = st.one_of(
    st.sampled_from(
        [b"", b"", b"data", b"data:", b"data: ", b"data:x", b"data: x", b"data:  x", b"data: a:b"]
    ),
    st.sampled_from(
        [
            b": comment",
            b":",
            b"event: ping",
            b"event:e",
            b"id: 7",
            b"retry: 3000",
            b"dat",
            b" data:x",
        ]
    ),
    st.text(alphabet="d ata:é😀\x00", max_size=8).map(str.encode),
)
ending = st.sampled_from([b"\n", b"\r\n", b"\r"])
streams = st.lists(st.tuples(line, ending), max_size=20).map(
    lambda parts: b"".join(text + end for text, end in parts)
)


@settings(deadline=None, max_examples=500)
@given(data=streams, bom=st.booleans(), tail=line, at=cuts)
def test_any_split_of_any_stream_gives_what_the_standard_says(
    data: bytes, bom: bool, tail: bytes, at: list[int]
) -> None:
    whole = (b"\xef\xbb\xbf" if bom else b"") + data + tail
    assert parse(split(whole, at)) == reference(whole)


@settings(deadline=None)
@given(data=st.binary(max_size=200), at=cuts)
def test_arbitrary_bytes_never_raise_and_split_alike(data: bytes, at: list[int]) -> None:
    assert parse(split(data, at)) == reference(data)


@pytest.mark.parametrize("data", [b"\xef\xbb\xbfdata: a\n\n", b"\xef\xbbdata: a\n\n", b"\xef"])
def test_a_byte_order_mark_in_pieces_is_still_one(data: bytes) -> None:
    assert parse([bytes([byte]) for byte in data]) == reference(data)


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_case_29_every_line_end_byte_by_byte(end: bytes, space: bytes) -> None:
    data = b"data:" + space + b"{}" + end + end + b"data:" + space + b"[DONE]" + end + end
    assert parse([bytes([byte]) for byte in data]) == [Event(b"{}"), Event(b"[DONE]")]


def test_case_29_a_crlf_split_in_its_middle_is_one_line_end() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\ndata: b\r") == []
    assert parser.feed(b"\n\r") == [Event(b"a\nb")]
    assert parser.feed(b"\n") == []
    assert parser.flush() == []


@pytest.mark.parametrize(
    "data", [b"retry: 3000\n\n", b"data:\n\n", b"data: \n\n", b"data\n\n", b": ping\n\n", b"\n\n\n"]
)
def test_case_26_events_without_data_are_none(data: bytes) -> None:
    assert parse([data]) == []


def test_case_30_characters_arrive_whole_however_they_were_cut() -> None:
    text = "data: 你好😀\n\n".encode()
    assert parse([bytes([byte]) for byte in text]) == [Event("你好😀".encode())]


def test_events_leave_as_soon_as_they_are_complete() -> None:
    parser = Parser()
    assert parser.feed(b"data: 1\n\ndata: 2\n\nda") == [Event(b"1"), Event(b"2")]
    assert parser.feed(b"ta: 3\n") == []
    assert parser.feed(b"\n") == [Event(b"3")]


def test_flush_gives_the_unfinished_event_once() -> None:
    parser = Parser()
    assert parser.feed(b"event: e\ndata: last") == []
    assert parser.flush() == [Event(b"last", b"e")]
    assert parser.flush() == []


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_an_endless_event_is_refused_however_it_comes(size: int) -> None:
    parser = Parser(max_event_bytes=100)

    def flood() -> None:
        for _ in range(200):
            parser.feed(b"x" * size)

    with pytest.raises(SSEError):
        flood()


def test_many_events_together_may_exceed_the_cap_of_one() -> None:
    assert len(Parser(max_event_bytes=20).feed(b"data: 0123456789\n\n" * 50)) == 50


@settings(deadline=None)
@given(
    data=st.text(min_size=1).filter(lambda text: not set(text) & set("\r\n")).map(str.encode),
    name=st.sampled_from([b"", b"error"]),
)
def test_what_is_encoded_is_parsed_again(data: bytes, name: bytes) -> None:
    assert Parser().feed(encode(data, name)) == [Event(data, name)]
