"""A chat stream as Anthropic's events: their order, what the SDK makes of them, how they fail."""

from __future__ import annotations

import itertools
import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.codec import Chained, ClientStream
from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_answer import OWN_SIGNATURE, to_message
from sluice.wire.messages_stream import PING_EVENT, MessagesFromChat
from sluice.wire.stream import CompletionStream, StreamView
from sluice.wire.tool_ids import toolu_id
from tests.wire.pieces import cuts, split

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

Events = list[tuple[str, dict[str, Any]]]


def sse(*bodies: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


def chunk(finish: str | None = None, stop: Any = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "stop_reason": stop}
    return {"id": "chatcmpl-c1", "model": "up", "choices": [choice]}


def call(index: int | None, arguments: str, id: str | None = None, name: str = "f") -> Any:
    part: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        part["index"] = index
    if id is not None:
        part |= {"id": id, "type": "function"}
        part["function"]["name"] = name
    return chunk(tool_calls=[part])


ROLE = chunk(role="assistant", content="")
TOTAL = {"id": "chatcmpl-c1", "model": "up", "choices": [], "usage": USAGE}
DONE = b"data: [DONE]\n\n"


def stream(*chunks: Any, usage: Any = TOTAL) -> bytes:
    return sse(ROLE, *chunks, *([usage] if usage else [])) + DONE


def run(*pieces: bytes) -> bytes:
    """What the client gets of an upstream's stream, through the whole chain."""
    chain = Chained(
        CompletionStream(StreamView("alias", include_usage=True)), MessagesFromChat("alias", 40)
    )
    out = b"".join([chain.feed(piece) for piece in pieces]) + chain.end()
    if chain.failure is not None:
        return out + chain.error(502, chain.failure)
    return out + chain.tail()


def events(out: bytes) -> Events:
    found: Events = []
    for block in out.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        found.append((body.pop("type"), body))
    return found


def client(out: bytes) -> anthropic.Anthropic:
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=out, headers=headers))
    return anthropic.Anthropic(
        api_key="k", base_url="http://gateway", http_client=httpx2.Client(transport=transport)
    )


def through_sdk(out: bytes) -> Message:
    """The message that the official SDK puts together."""
    with (
        client(out) as sdk,
        sdk.messages.stream(
            model="alias", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as streamed,
    ):
        return streamed.get_final_message()


def blocks(out: bytes) -> list[Any]:
    """The blocks of a stream, each as kind and content, with the order of events checked."""
    found: list[Any] = []
    names = [name for name, _ in events(out)]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    open_at = None
    for name, body in events(out)[1:-2]:
        if name == "content_block_start":
            assert open_at is None
            open_at = body["index"]
            assert open_at == len(found)
            block = body["content_block"]
            found.append([block["type"], ""])
        elif name == "content_block_delta":
            assert body["index"] == open_at
            kind, text = list(body["delta"].values())
            found[-1][1] += "" if kind == "signature_delta" else text
        else:
            assert (name, body["index"]) == ("content_block_stop", open_at)
            open_at = None
    assert open_at is None
    return [tuple(block) for block in found]


def final(out: bytes) -> dict[str, Any]:
    """`message_delta`."""
    (body,) = [body for name, body in events(out) if name == "message_delta"]
    return body


class TestText:
    def test_n02_the_events_of_a_plain_answer(self) -> None:
        out = run(stream(chunk(content="naï"), chunk(content="ve 🚀"), chunk("stop")))
        start = events(out)[0][1]["message"]
        assert start == {
            "id": "msg_c1",
            "type": "message",
            "role": "assistant",
            "model": "alias",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 10,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }
        assert blocks(out) == [("text", "naïve 🚀")]
        assert final(out)["delta"]["stop_reason"] == "end_turn"
        assert final(out)["usage"]["input_tokens"] == 11

    def test_n02_the_sdk_helper_reads_it(self) -> None:
        read = through_sdk(run(stream(chunk(content="naï"), chunk(content="ve 🚀"), chunk("stop"))))
        assert [block.to_dict() for block in read.content] == [{"type": "text", "text": "naïve 🚀"}]
        assert (read.id, read.model, read.stop_reason) == ("msg_c1", "alias", "end_turn")
        assert (read.usage.input_tokens, read.usage.output_tokens) == (11, 7)

    def test_case_39_each_token_leaves_at_once(self) -> None:
        chain = MessagesFromChat("alias")
        assert b"message_start" in chain.feed(sse(ROLE))
        for text in "abc":
            assert f'"text":"{text}"'.encode() in chain.feed(sse(chunk(content=text)))

    @pytest.mark.parametrize("chunks", [[], [chunk(content="")]])
    def test_an_empty_answer_is_one_empty_text(self, chunks: list[Any]) -> None:
        assert blocks(run(stream(*chunks, chunk("stop")))) == [("text", "")]

    @pytest.mark.parametrize("text", ["\n", " \n a", "a \n"])
    def test_white_space_of_a_lone_text_is_kept(self, text: str) -> None:
        out = run(stream(*[chunk(content=c) for c in text], chunk("stop")))
        assert blocks(out) == [("text", text)]

    def test_other_choices_are_not_mixed_in(self) -> None:
        other = chunk(content="zzz")
        other["choices"][0]["index"] = 1
        chain = MessagesFromChat("alias")
        out = chain.feed(stream(chunk(content="a"), other, chunk("stop"))) + chain.tail()
        assert blocks(out) == [("text", "a")]


class TestThinking:
    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_n08_reasoning_is_a_thinking_block_with_our_signature(self, field: str) -> None:
        thought = [chunk(**{field: part}) for part in ("so ", "so")]
        out = run(stream(*thought, chunk(content="yes"), chunk("stop")))
        assert blocks(out) == [("thinking", "so so"), ("text", "yes")]
        named = [name for name, _ in events(out)]
        at = named.index("content_block_stop")
        assert events(out)[at - 1][1]["delta"] == {
            "type": "signature_delta",
            "signature": OWN_SIGNATURE,
        }
        thinking, text = through_sdk(out).content
        assert isinstance(thinking, ThinkingBlock)
        assert (thinking.thinking, thinking.signature) == ("so so", OWN_SIGNATURE)
        assert isinstance(text, TextBlock)

    def test_thinking_may_come_again_after_text(self) -> None:
        out = run(
            stream(
                chunk(reasoning="a"), chunk(content="b"), chunk(reasoning="c"), chunk(finish="stop")
            )
        )
        assert blocks(out) == [("thinking", "a"), ("text", "b"), ("thinking", "c")]

    def test_blank_text_between_thinking_and_a_call_is_left_out(self) -> None:
        out = run(
            stream(
                chunk(reasoning="a"),
                chunk(content="\n\n"),
                call(0, "{}", "c"),
                chunk(finish="tool_calls"),
            )
        )
        assert blocks(out) == [("thinking", "a"), ("tool_use", "{}")]


class TestTools:
    def test_case_8_text_then_a_call_is_tool_use(self) -> None:
        out = run(
            stream(
                chunk(content="Let me see."),
                call(0, "", "call_1"),
                call(0, '{"ci'),
                call(0, 'ty":"Paris"}'),
                chunk("tool_calls"),
            )
        )
        assert blocks(out) == [("text", "Let me see."), ("tool_use", '{"city":"Paris"}')]
        assert final(out)["delta"]["stop_reason"] == "tool_use"
        tool = through_sdk(out).content[1]
        assert isinstance(tool, ToolUseBlock)
        assert (tool.id, tool.input) == (toolu_id("call_1"), {"city": "Paris"})

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("stop", "tool_use"),
            ("tool_calls", "tool_use"),
            ("length", "max_tokens"),
            ("content_filter", "refusal"),
        ],
    )
    def test_cases_9_and_14_a_call_is_reported_unless_it_was_cut(
        self, finish: str, reason: str
    ) -> None:
        out = run(stream(call(0, "{}", "c"), chunk(finish)))
        assert final(out)["delta"]["stop_reason"] == reason

    def test_a_stop_string_inside_a_call_is_no_tool_use(self) -> None:
        out = run(stream(call(0, '{"a":"', "c"), chunk("stop", "END")))
        assert final(out)["delta"]["stop_reason"] == "stop_sequence"
        assert final(out)["delta"]["stop_sequence"] == "END"

    def test_case_6_a_call_without_arguments(self) -> None:
        tool = through_sdk(run(stream(call(0, "", "c"), chunk("tool_calls")))).content[0]
        assert isinstance(tool, ToolUseBlock)
        assert tool.input == {}

    def test_the_next_call_starts_when_the_first_is_whole(self) -> None:
        chain = MessagesFromChat("alias")
        chain.feed(sse(ROLE, call(0, '{"a":', "one"), call(0, "1}")))
        out = chain.feed(sse(call(1, "", "two")))
        assert [name for name, _ in events(out)] == ["content_block_stop", "content_block_start"]
        assert b"input_json_delta" in chain.feed(sse(call(1, '{"b"')))

    @given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2]))
    @settings(deadline=None)
    def test_interleaved_calls_come_out_one_after_the_other(self, order: list[int]) -> None:
        parts = {0: ['{"a"', ":", "{}}"], 1: ["{", '"b":1', "}"], 2: ["", "{}"]}
        left = {index: iter(texts) for index, texts in parts.items()}
        seen: set[int] = set()
        chunks = []
        for index in order:
            id = None if index in seen else f"call_{index}"
            seen.add(index)
            chunks.append(call(index, next(left[index]), id))
        out = run(stream(*chunks, chunk("tool_calls")))
        want = [("tool_use", "".join(parts[index])) for index in dict.fromkeys(order)]
        assert blocks(out) == want

    def test_text_amid_a_call_waits_for_its_end(self) -> None:
        out = run(
            stream(
                call(0, '{"a"', "c"), chunk(content="aside"), call(0, ":1}"), chunk("tool_calls")
            )
        )
        assert blocks(out) == [("tool_use", '{"a":1}'), ("text", "aside")]

    @pytest.mark.parametrize("indexes", [(None, None), (0, 0), (0, 1), (3, 1)])
    def test_case_11_calls_are_told_apart_by_ids(self, indexes: tuple[Any, Any]) -> None:
        one, two = indexes
        out = run(
            stream(
                call(one, '{"a":', "x"),
                call(one, "1}"),
                call(two, '{"b":', "y"),
                call(two, "2}"),
                chunk("tool_calls"),
            )
        )
        assert blocks(out) == [("tool_use", '{"a":1}'), ("tool_use", '{"b":2}')]

    def test_an_id_repeated_with_each_part_is_the_same_call(self) -> None:
        out = run(stream(call(0, '{"a"', "x"), call(0, ":1}", "x"), chunk("tool_calls")))
        assert blocks(out) == [("tool_use", '{"a":1}')]

    def test_case_18_both_modes_make_the_same_message(self) -> None:
        streamed = through_sdk(
            run(
                stream(
                    chunk(reasoning="r"),
                    chunk(content="t"),
                    call(0, "{}", "c"),
                    chunk("tool_calls"),
                )
            )
        )
        tool = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        whole = {
            "id": "chatcmpl-c1",
            "choices": [
                {
                    "message": {"content": "t", "reasoning": "r", "tool_calls": [tool]},
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": USAGE,
        }
        message = json.loads(to_message(json.dumps(whole).encode(), "alias"))
        got = json.loads(streamed.to_json())
        for name in ("id", "model", "content", "stop_reason"):
            assert got[name] == message[name]
        assert got["usage"]["output_tokens"] == message["usage"]["output_tokens"]


class TestEnd:
    def test_the_reason_waits_for_the_usage_and_the_end_for_the_tail(self) -> None:
        chain = MessagesFromChat("alias")
        assert b"message_delta" not in chain.feed(sse(ROLE, chunk(content="a"), chunk("stop")))
        assert b"message_delta" in chain.feed(sse(TOTAL) + DONE)
        assert [name for name, _ in events(chain.tail())] == ["message_stop"]
        assert chain.tail() == b""

    def test_case_22_absent_usage_is_estimated(self) -> None:
        out = run(stream(chunk(content="a" * 40), chunk("stop"), usage=None))
        assert final(out)["usage"]["input_tokens"] == 10
        assert final(out)["usage"]["output_tokens"] == 10

    def test_case_23_cached_tokens_are_told_apart(self) -> None:
        details = {"prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 3}}
        usage = {**TOTAL, "usage": {**USAGE, **details}}
        read = through_sdk(run(stream(chunk(content="a"), chunk("stop"), usage=usage)))
        assert read.usage.input_tokens == 2
        assert read.usage.cache_read_input_tokens == 6
        assert read.usage.cache_creation_input_tokens == 3

    def test_vllm_names_the_stop_string(self) -> None:
        read = through_sdk(run(stream(chunk(content="a"), chunk("stop", "END"))))
        assert (read.stop_reason, read.stop_sequence) == ("stop_sequence", "END")

    def test_n12_a_refusal_is_told_with_its_words(self) -> None:
        out = run(stream(chunk(refusal="I "), chunk(refusal="can't."), chunk("stop")))
        assert blocks(out) == [("text", "I can't.")]
        assert final(out)["delta"]["stop_reason"] == "refusal"
        assert final(out)["delta"]["stop_details"]["explanation"] == "I can't."


class TestFailure:
    @pytest.mark.parametrize(
        "data",
        [
            sse(ROLE, chunk(content="a")),  # the end is missing
            sse(ROLE, chunk(content="a"), {"error": {"message": "no", "code": 500}}) + DONE,
            sse(ROLE, chunk(content="a"), chunk("abort")) + DONE,
        ],
    )
    def test_cases_31_and_32_and_n07_a_broken_answer_ends_in_an_error(self, data: bytes) -> None:
        out = run(data)
        assert b"message_stop" not in out
        with pytest.raises(anthropic.APIStatusError):
            through_sdk(out)

    def test_case_34_the_kind_of_error_is_kept(self) -> None:
        chain = MessagesFromChat("alias")
        out = chain.error(ErrorDetail("busy", "overloaded_error"))
        assert events(out)[0][1]["error"]["type"] == "overloaded_error"
        assert chain.feed(sse(chunk(content="a"))) == b""
        assert chain.tail() == b""

    @pytest.mark.parametrize(
        "data", [b"data: {]\n\n", sse(chunk(tool_calls=[{"index": "x"}])), sse([])]
    )
    def test_an_unreadable_event_is_an_error_and_no_end(self, data: bytes) -> None:
        chain = MessagesFromChat("alias")
        out = chain.feed(sse(ROLE, chunk(content="a")) + data) + chain.feed(stream()) + chain.tail()
        assert [name for name, _ in events(out)][-1] == "error"

    def test_half_a_surrogate_pair_is_no_error(self) -> None:
        chain = MessagesFromChat("alias")
        data = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n'
        assert "a\ufffd".encode() in chain.feed(data)


class TestPing:
    def test_case_27_pings_are_allowed_anywhere(self) -> None:
        out = run(stream(chunk(content="a"), chunk("stop")))
        parts = [part + b"\n\n" for part in out.split(b"\n\n")[:-1]]
        pinged = b"".join(itertools.chain.from_iterable((PING_EVENT, part) for part in parts))
        assert through_sdk(pinged) == through_sdk(out)


_texts = st.text(max_size=4)
_pieces = st.one_of(
    st.builds(lambda text: chunk(content=text), _texts),
    st.builds(lambda text: chunk(reasoning=text), _texts),
    st.builds(lambda index, text: call(index, text, f"c{index}"), st.integers(0, 2), _texts),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(_pieces, max_size=8), cuts, st.sampled_from(["stop", "length", "tool_calls"]))
def test_case_30_any_split_gives_the_same_bytes(
    pieces: list[Any], at: list[int], finish: str
) -> None:
    data = stream(*pieces, chunk(finish))
    whole = run(data)
    assert run(*split(data, at)) == whole
    assert run(*[bytes([byte]) for byte in data]) == whole
    assert blocks(whole)


def test_it_is_a_client_stream() -> None:
    client_stream: ClientStream = MessagesFromChat("alias")
    assert client_stream.feed(b"") == b""
