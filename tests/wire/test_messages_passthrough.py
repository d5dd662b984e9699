"""Messages for clients of Anthropic's format: byte for byte, but for the model and the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sluice.wire import sse
from sluice.wire.answer import Answer
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_passthrough import AnthropicPassStream, read_pass_message
from sluice.wire.usage import Usage
from tests.wire.pieces import cuts, deep, json_values, split
from tests.wire.test_anthropic_stream import (
    OVERLOADED,
    event,
    start,
    stop,
    text,
    thinking,
    use,
)


def run(*pieces: bytes, model: str = "claude-x") -> tuple[bytes, AnthropicPassStream]:
    stream = AnthropicPassStream(model)
    out = b"".join([stream.feed(piece) for piece in pieces]) + stream.end()
    return out + (stream.tail() if stream.done else b""), stream


class TestStream:
    def test_it_is_a_codec(self) -> None:
        stream: StreamCodec = AnthropicPassStream("m")
        assert stream.failure is None

    def test_n08_every_byte_passes(self) -> None:
        odd = b'event: content_block_delta\ndata: {"type" : "content_block_delta",  "index":0, '
        odd += b'"delta":{"type":"text_delta","text":"\\u00e9\\/"}, "big":1e400}\n\n'
        data = start() + thinking(0, "s==", "h") + text(1, "x") + odd + event("ping")
        data += event("novel", x=[1]) + use(2, "t", '{"a":1}') + stop("tool_use")
        assert run(data)[0] == data

    def test_case_25_the_model_is_the_alias(self) -> None:
        odd = start().replace(b'"content": []', b'"content":[ ],"n":1.50')
        out, _ = run(odd + text(0, "claude-x") + stop(), model="fast")
        first, _, rest = out.partition(b"\n\n")
        assert rest == text(0, "claude-x") + stop()
        body = json.loads(first.partition(b"data: ")[2])
        assert body["message"]["model"] == "fast"
        assert b'"content":[ ],"n":1.50' in first
        before = json.loads(odd.partition(b"data: ")[2])
        assert {**body["message"], "model": "claude-x"} == before["message"]

    def test_the_end_waits_for_the_tail(self) -> None:
        stream = AnthropicPassStream("claude-x")
        end = stop()
        ended = end.replace(b"event: message_stop", event("ping") + b"event: message_stop")
        assert stream.feed(start() + text(0, "x") + ended) == start() + text(0, "x")
        assert stream.done
        assert stream.tail() == ended
        assert stream.feed(text(1, "more")) == stream.end() == b""

    def test_names_that_are_missing_are_added(self) -> None:
        data = start() + text(0, "x") + stop()
        bare = b"\n".join(line for line in data.split(b"\n") if not line.startswith(b"event"))
        assert run(bare)[0] == data

    def test_case_29_line_ends(self) -> None:
        data = start() + text(0, "你好😀") + stop()
        assert run(data.replace(b"\n", b"\r\n"))[0] == data

    def test_case_23_usage_is_cumulative(self) -> None:
        _, stream = run(start(cache_read_input_tokens=7) + text(0, "x") + stop(output=20))
        assert stream.usage(0) == Usage(107, 7, 0, 20)

    def test_case_83_usage_before_the_end(self) -> None:
        stream = AnthropicPassStream("claude-x")
        assert stream.usage(40) == Usage(10, estimated=True)
        stream.feed(start() + text(0, "x" * 40))
        assert stream.usage(40) == Usage(100, output_tokens=10, estimated=True)

    def test_the_first_token_is_noticed(self) -> None:
        assert not run(start() + event("ping"))[1].has_content
        assert run(start() + text(0, "x"))[1].has_content

    @settings(deadline=None, max_examples=100)
    @given(
        parts=st.lists(st.text(max_size=5), max_size=4),
        extra=json_values,
        model=st.sampled_from(["claude-x", "fast"]),
        at=cuts,
    )
    def test_any_split_gives_the_same_bytes(
        self, parts: list[str], extra: Any, model: str, at: list[int]
    ) -> None:
        data = start() + text(0, *parts) + event("news", x=extra) + use(1, "t", "{}") + stop()
        whole, stream = run(data, model=model)
        pieces, other = run(*split(data, at), model=model)
        assert pieces == whole
        assert stream.done
        assert other.usage(0) == stream.usage(0)

    def test_n02_the_sdk_reads_every_event(self) -> None:
        events: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
        out, _ = run(start() + thinking(0, "s", "h") + use(1, "t") + stop(), model="fast")
        for part in sse.Parser().feed(out):
            assert events.validate_json(part.data).type.encode() == part.name


class TestFailures:
    @pytest.mark.parametrize("before", [b"", start(), start() + text(0, "x")])
    def test_case_34_an_error_keeps_its_type(self, before: bytes) -> None:
        out, stream = run(before + OVERLOADED + stop())
        assert out == before
        assert stream.failure == ErrorDetail("Overloaded", "overloaded_error")
        assert not stream.done

    @pytest.mark.parametrize("until", [0, 1, 2, 3])
    def test_case_32_an_early_end(self, until: int) -> None:
        parts = [b"", start(), text(0, "x"), stop().partition(b"event: message_st")[0]]
        out, stream = run(*parts[: until + 1])
        assert stream.failure is not None
        assert stream.failure.code == "upstream_connection_lost"
        assert b'stop_reason": "' not in out

    @pytest.mark.parametrize("data", [b"{", b"null", b"{}", deep(), b'{"type":"error"}'])
    def test_events_that_cant_be_read(self, data: bytes) -> None:
        _, stream = run(b"data: " + data + b"\n\n")
        assert stream.failure is not None
        assert stream.failure.code == "upstream_invalid_response"

    def test_an_endless_event(self) -> None:
        _, stream = run(b"data: " + b"x" * (17 << 20))
        assert stream.failure is not None

    @pytest.mark.parametrize(
        ("detail", "kind"),
        [
            (ErrorDetail("m", "overloaded_error"), "overloaded_error"),
            (ErrorDetail("m", "server_error"), "api_error"),
            (ErrorDetail("m", "server_error", code="upstream_timeout"), "timeout_error"),
            (ErrorDetail("m", "service_unavailable_error"), "overloaded_error"),
        ],
    )
    def test_n07_the_error_is_sent_in_band(self, detail: ErrorDetail, kind: str) -> None:
        (sent,) = sse.Parser().feed(AnthropicPassStream("m").error(502, detail))
        assert sent.name == b"error"
        assert json.loads(sent.data) == {"type": "error", "error": {"type": kind, "message": "m"}}


BODY = (
    b'{"type" : "message","id":"msg_1","model":"claude-x","content":[{"text":"\\u00e9"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":3,"cache_creation_input_tokens":4,'
    b'"cache_read_input_tokens":5,"output_tokens":6},"n":1.50}'
)


class TestWhole:
    def test_every_byte_passes(self) -> None:
        assert read_pass_message(BODY, "claude-x") == Answer(BODY, Usage(12, 5, 4, 6))

    def test_case_25_the_model_is_the_alias(self) -> None:
        read = read_pass_message(BODY, "fast")
        assert isinstance(read, Answer)
        assert read.body == BODY.replace(b" : ", b":").replace(b"claude-x", b"fast")

    def test_missing_usage_is_estimated(self) -> None:
        body = b'{"type":"message","model":"m","content":[{"type":"text","text":"hello"}]}'
        read = read_pass_message(body, "m", 40)
        assert isinstance(read, Answer)
        assert read.usage.estimated
        assert read.usage.input_tokens == 10

    def test_an_error_under_a_200(self) -> None:
        body = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
        assert read_pass_message(body, "m") == ErrorDetail("busy", "overloaded_error")

    @pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", deep(), b'{"type":"list"}'])
    def test_what_is_no_message(self, body: bytes) -> None:
        read = read_pass_message(body, "m")
        assert isinstance(read, ErrorDetail)
        assert read.code == "upstream_invalid_response"
