"""Anthropic's streams as chat streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from sluice.wire.anthropic_answer import NameMap, read_message
from sluice.wire.anthropic_stream import PING, AnthropicChatStream
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import ErrorDetail
from sluice.wire.stream import StreamView
from sluice.wire.usage import Usage
from tests.wire.pieces import cuts, deep, json_values, split


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def start(**usage: Any) -> bytes:
    usage = {"input_tokens": 100, "output_tokens": 1, **usage}
    message: dict[str, Any] = {
        "id": "msg_01A", "type": "message", "role": "assistant", "model": "claude-x",
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    return event("message_start", message=message)


def block(index: int, first: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    out = event("content_block_start", index=index, content_block=first)
    for delta in deltas:
        out += event("content_block_delta", index=index, delta=delta)
    return out + event("content_block_stop", index=index)


def text(index: int, *parts: str) -> bytes:
    deltas = [{"type": "text_delta", "text": part} for part in parts]
    return block(index, {"type": "text", "text": ""}, *deltas)


def use(index: int, ident: str, *parts: str, name: str = "f") -> bytes:
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return block(index, {"type": "tool_use", "id": ident, "name": name, "input": {}}, *deltas)


def thinking(index: int, signature: str, *parts: str) -> bytes:
    deltas = [{"type": "thinking_delta", "thinking": part} for part in parts]
    sealed = {"type": "signature_delta", "signature": signature}
    first = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, first, *deltas, sealed)


def stop(reason: str = "end_turn", output: int = 20, **delta: Any) -> bytes:
    delta = {"stop_reason": reason, **delta}  # case 17: without `stop_sequence`
    return event("message_delta", delta=delta, usage={"output_tokens": output}) + event(
        "message_stop"
    )


def new(view: StreamView | None = None, names: NameMap | None = None) -> AnthropicChatStream:
    return AnthropicChatStream(view or StreamView("alias"), names or NameMap(), 5)


def run(
    *pieces: bytes, view: StreamView | None = None, names: NameMap | None = None
) -> tuple[bytes, AnthropicChatStream]:
    stream = new(view, names)
    out = b"".join([stream.feed(piece) for piece in pieces]) + stream.end()
    return out + (stream.tail() if stream.done else b""), stream


def chunks(out: bytes) -> list[dict[str, Any]]:
    """The chunks before the end marker, each of them valid."""
    *events, end, nothing = out.replace(PING, b"").decode().split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    bodies = [json.loads(part.removeprefix("data: ")) for part in events]
    for body in bodies:
        ChatCompletionChunk.model_validate(body, strict=True)
    return bodies


def deltas(out: bytes) -> list[dict[str, Any]]:
    return [body["choices"][0]["delta"] for body in chunks(out) if body["choices"]]


def assembled(out: bytes) -> dict[str, Any]:
    """The message that the official SDK's helper puts together."""
    whole: dict[object, object] = {}
    for delta in deltas(out):
        whole = accumulate_delta(whole, delta)  # type: ignore[arg-type]
    return {str(name): value for name, value in whole.items()}


def failure(*pieces: bytes) -> ErrorDetail:
    out, stream = run(*pieces)
    assert stream.failure is not None
    assert not stream.done
    assert b'finish_reason":"' not in out  # case 31: no end is made up
    assert b"[DONE]" not in out
    return stream.failure


class TestContent:
    def test_it_is_a_codec(self) -> None:
        stream: StreamCodec = new()
        assert stream.failure is None

    def test_c02_a_text(self) -> None:
        out, _ = run(start() + text(0, "h", "i") + stop())
        bodies = chunks(out)
        assert bodies[1] == {
            "id": "chatcmpl-01A",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": "alias",  # case 25
            "choices": [
                {"index": 0, "delta": {"content": "h"}, "logprobs": None, "finish_reason": None}
            ],
        }
        finishes = [body["choices"][0]["finish_reason"] for body in bodies]
        assert finishes == [None, None, None, "stop"]

    def test_case_5_the_role_comes_once_and_first(self) -> None:
        out, _ = run(start() + text(0, "h", "i") + stop())
        assert ["role" in delta for delta in deltas(out)] == [True, False, False, False]

    def test_case_1_tools_count_from_0(self) -> None:
        data = text(0, "x") + use(1, "t1", '{"a"', ":1}") + use(2, "t2", '{"b":2}')
        out, _ = run(start() + data + stop("tool_use"))
        calls: Any = assembled(out)["tool_calls"]
        assert [call["index"] for call in calls] == [0, 1]
        assert [call["id"] for call in calls] == ["t1", "t2"]
        arguments = [call["function"]["arguments"] for call in calls]
        assert arguments == ['{"a":1}', '{"b":2}']
        assert chunks(out)[-1]["choices"][0]["finish_reason"] == "tool_calls"

    def test_case_2_the_first_delta_of_a_tool_is_complete(self) -> None:
        out, _ = run(start() + text(0, "x") + use(1, "t1", "", '{"a":1}') + stop("tool_use"))
        tools = [delta["tool_calls"] for delta in deltas(out) if "tool_calls" in delta]
        assert tools == [
            [{"index": 0, "id": "t1", "type": "function",
              "function": {"name": "f", "arguments": ""}}],
            [{"index": 0, "function": {"arguments": '{"a":1}'}}],
        ]  # fmt: skip

    def test_case_4_there_is_one_choice(self) -> None:
        out, _ = run(start() + thinking(0, "s", "hm") + text(1, "x") + stop())
        assert {body["choices"][0]["index"] for body in chunks(out)} == {0}

    def test_case_6_no_arguments_are_an_object(self) -> None:
        for data in (use(0, "t"), use(0, "t", ""), use(0, "t", "", "")):
            out, _ = run(start() + data + stop("tool_use"))
            message: Any = assembled(out)
            assert message["tool_calls"][0]["function"]["arguments"] == "{}"

    def test_case_6_arguments_that_come_whole(self) -> None:
        first = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
        message: Any = assembled(run(start() + block(0, first) + stop("tool_use"))[0])
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}

    def test_c07_the_sdks_helper(self) -> None:
        data = thinking(0, "s", "hm") + text(1, "x") + use(2, "t1", '{"a":1}') + use(3, "t2")
        view = StreamView("alias", include_usage=True)
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        for body in chunks(run(start() + data + stop("tool_use"), view=view)[0]):
            list(state.handle_chunk(ChatCompletionChunk.model_validate(body)))
        final = state.get_final_completion()
        assert final.usage is not None
        assert final.usage.total_tokens == 120
        assert final.choices[0].message.content == "x"
        called = [call.id for call in final.choices[0].message.tool_calls or []]
        assert called == ["t1", "t2"]

    def test_case_9_a_call_ends_as_one(self) -> None:
        out, _ = run(start() + use(0, "t", "{}") + stop("end_turn"))
        assert chunks(out)[-1]["choices"][0]["finish_reason"] == "tool_calls"

    def test_case_18_text_and_calls_are_both_there(self) -> None:
        out, _ = run(start() + text(0, "so") + use(1, "t", "{}") + stop("tool_use"))
        message = assembled(out)
        assert message["content"] == "so"
        assert "tool_calls" in message

    def test_case_49_names_are_the_clients(self) -> None:
        data = start() + use(0, "t", "{}", name="a_b_1") + stop("tool_use")
        message: Any = assembled(run(data, names=NameMap({"a_b_1": "a.b"}))[0])
        assert message["tool_calls"][0]["function"]["name"] == "a.b"

    def test_c25_thinking_comes_as_text_and_then_whole(self) -> None:
        redacted = block(1, {"type": "redacted_thinking", "data": "x"})
        data = thinking(0, "s==", "h", "m") + redacted + thinking(2, "t==") + text(3, "y")
        message = assembled(run(start() + data + stop())[0])
        assert message["reasoning_content"] == "hm"
        assert message["thinking_blocks"] == [
            {"index": 0, "type": "thinking", "thinking": "hm", "signature": "s=="},
            {"index": 1, "type": "redacted_thinking", "data": "x"},
            {"index": 2, "type": "thinking", "thinking": "", "signature": "t=="},  # case 51
        ]

    def test_n12_a_refusal(self) -> None:
        details = {"type": "refusal", "explanation": "no way"}
        out, _ = run(start() + text(0, "x") + stop("refusal", stop_details=details))
        assert assembled(out)["refusal"] == "no way"
        assert chunks(out)[-1]["choices"][0]["finish_reason"] == "content_filter"

    def test_pings_are_comments_and_what_is_unknown_is_ignored(self) -> None:
        noise = event("ping") + event("novel", delta="text", usage=[1]) + event("x", message=3)
        citation = {"type": "citations_delta", "citation": {"type": "page_location"}}
        data = noise + block(0, {"type": "text", "text": ""}, citation) + text(1, "x")
        out, stream = run(start() + data + stop())
        assert stream.done
        assert out.count(PING) == 1
        assert assembled(out)["content"] == "x"

    @pytest.mark.parametrize("line_end", [b"\r\n", b"\r", b"\n"])
    def test_case_29_line_ends(self, line_end: bytes) -> None:
        data = start() + text(0, "你好😀") + stop()
        whole, _ = run(data)
        assert run(data.replace(b"\n", line_end).replace(b": ", b":", 1))[0] == whole

    def test_it_agrees_with_the_whole_answer(self) -> None:
        data = thinking(0, "s", "hm") + text(1, "a", "b") + use(2, "t", '{"a":', "1}")
        out, stream = run(start() + data + stop("tool_use"))
        content = [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ]
        body = {
            "id": "msg_01A", "type": "message", "content": content, "stop_reason": "tool_use",
            "usage": {"input_tokens": 100, "output_tokens": 20},
        }  # fmt: skip
        compact = json.dumps(body, separators=(",", ":")).encode()
        read = read_message(compact, "alias", NameMap(), 0, 5)
        assert not isinstance(read, ErrorDetail)
        message = json.loads(read.body)["choices"][0]["message"]
        streamed: Any = assembled(out)
        for entry in streamed["tool_calls"] + streamed["thinking_blocks"]:
            del entry["index"]
        assert {"refusal": None, **streamed} == message
        assert stream.usage(0) == read.usage


class TestEnd:
    def test_the_end_waits_for_the_tail(self) -> None:
        stream = new(StreamView("alias", include_usage=True))
        out = stream.feed(start() + text(0, "x") + stop())
        assert stream.done
        assert b'"choices":[]' not in out
        assert b"[DONE]" not in out
        assert stream.feed(text(1, "more")) == stream.end() == b""

    def test_case_19_one_usage_chunk_with_no_choices(self) -> None:
        view = StreamView("alias", include_usage=True)
        *others, last = chunks(run(start() + text(0, "x") + stop(), view=view)[0])
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 120
        assert [body["usage"] for body in others] == [None] * len(others)

    def test_case_21_nobody_asked_for_usage(self) -> None:
        assert b"usage" not in run(start() + text(0, "x") + stop())[0]

    def test_case_23_input_and_output_both_count(self) -> None:
        _, stream = run(start() + text(0, "x") + stop(output=20))
        assert stream.usage(0) == Usage(100, output_tokens=20)

    def test_the_last_count_is_right(self) -> None:
        first = start(cache_read_input_tokens=5, cache_creation_input_tokens=6)
        late = {"input_tokens": 50, "output_tokens": 30,
                "output_tokens_details": {"thinking_tokens": 9}}  # fmt: skip
        end = event("message_delta", delta={"stop_reason": "end_turn"}, usage=late)
        view = StreamView("alias", include_usage=True)
        out, stream = run(first + text(0, "x") + end + event("message_stop"), view=view)
        assert stream.usage(0) == Usage(61, 5, 6, 30)
        usage = chunks(out)[-1]["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 9}

    def test_case_83_usage_before_the_end(self) -> None:
        stream = new()
        assert stream.usage(40) == Usage(10, estimated=True)
        stream.feed(start())
        assert stream.usage(40) == Usage(100, output_tokens=1, estimated=True)
        stream.feed(event("content_block_start", index=0, content_block={"type": "text"}))
        delta = {"type": "text_delta", "text": "x" * 40}
        stream.feed(event("content_block_delta", index=0, delta=delta))
        assert stream.usage(40) == Usage(100, output_tokens=10, estimated=True)

    def test_the_first_token_is_noticed(self) -> None:
        opened = event("content_block_start", index=0, content_block={"type": "text"})
        assert not run(start() + event("ping") + opened)[1].has_content
        for first in (text(0, "x"), thinking(0, "", "x"), use(0, "t")):
            assert run(start() + first)[1].has_content

    @settings(deadline=None, max_examples=150)
    @given(
        parts=st.lists(st.text(max_size=5), max_size=4),
        extra=json_values,
        include=st.booleans(),
        at=cuts,
    )
    def test_any_split_gives_the_same_bytes(
        self, parts: list[str], extra: Any, include: bool, at: list[int]
    ) -> None:
        data = start() + thinking(0, "s", *parts) + text(1, *parts) + event("news", x=extra)
        data += event("ping") + use(2, "t", '{"a":', "1}") + stop("tool_use")
        view = StreamView("alias", include)
        whole, stream = run(data, view=view)
        pieces, other = run(*split(data, at), view=view)
        assert pieces == whole
        assert stream.done
        assert other.usage(0) == stream.usage(0)


OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


class TestFailures:
    def test_case_33_an_error_before_any_content(self) -> None:
        for data in (OVERLOADED, start() + OVERLOADED, start() + event("ping") + OVERLOADED):
            _, stream = run(data)
            assert stream.failure is not None
            assert not stream.has_content

    def test_case_34_an_overload_keeps_its_name(self) -> None:
        detail = failure(start() + text(0, "x") + OVERLOADED + stop())
        assert detail == ErrorDetail("Overloaded", "overloaded_error", None, "server_is_overloaded")

    @pytest.mark.parametrize("until", [0, 1, 2, 3])
    def test_case_31_an_early_end(self, until: int) -> None:
        parts = [
            start(),
            text(0, "x"),
            use(1, "t", '{"a'),
            stop().partition(b"event: message_st")[0],
        ]
        assert failure(*parts[: until + 1]).code == "upstream_connection_lost"
        assert failure().code == "upstream_connection_lost"

    def test_case_32_an_end_without_a_reason(self) -> None:
        assert failure(start() + event("message_stop")).code == "upstream_connection_lost"

    def test_case_35_an_error_as_the_first_frame(self) -> None:
        detail = failure(b'data: {"error":{"message":"m","code":null}}\n\n')
        assert detail.message == "m"

    @pytest.mark.parametrize(
        "data",
        [b"{", b"null", b"[]", deep(), b"\xff", b"{}", b'{"type":"content_block_delta","delta":1}',
         b'{"type":"message_stop"}', b'{"type":"error"}'],
    )  # fmt: skip
    def test_events_that_cant_be_read(self, data: bytes) -> None:
        assert failure(b"data: " + data + b"\n\n").code == "upstream_invalid_response"

    def test_an_endless_event(self) -> None:
        assert failure(b"data: " + b"x" * (17 << 20)).code == "upstream_invalid_response"

    def test_nothing_comes_after_a_failure(self) -> None:
        stream = new()
        stream.feed(start() + OVERLOADED)
        assert stream.feed(text(0, "x") + stop()) == stream.end() == b""

    def test_case_31_usage_of_a_broken_answer(self) -> None:
        _, stream = run(start() + text(0, "x" * 80))
        assert stream.usage(0) == Usage(100, output_tokens=20, estimated=True)

    def test_the_error_is_sent_in_band(self) -> None:
        out = new().error(502, ErrorDetail("m", "overloaded_error"))
        assert json.loads(out.removeprefix(b"data: "))["error"]["type"] == "overloaded_error"
