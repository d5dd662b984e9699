"""A chat answer as an Anthropic message: blocks, ids, stop reasons, usage; read by the SDK."""

from __future__ import annotations

import json
import re
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

from sluice.wire.messages_answer import (
    INVALID_JSON,
    OWN_SIGNATURE,
    message_id,
    to_message,
)
from sluice.wire.messages_request import read_messages_request, to_chat
from sluice.wire.objects import MalformedJSON
from sluice.wire.tool_ids import toolu_id
from tests.wire.pieces import deep

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def call(arguments: Any, name: str = "f", id: str | None = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(finish: str = "stop", usage: Any = USAGE, more: Any = None, **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}}
    choice |= {"finish_reason": finish, **(more or {})}
    body = {"id": "chatcmpl-x1", "object": "chat.completion", "model": "up", "choices": [choice]}
    return json.dumps({**body, "usage": usage}).encode()


def message(body: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(to_message(body, "alias", 40))
    return value


def through_sdk(body: bytes) -> Message:
    """What the official SDK makes of an answer."""
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, content=body, headers={"content-type": "application/json"})
    )
    with (
        httpx2.Client(transport=transport) as http,
        anthropic.Anthropic(api_key="k", base_url="http://gateway", http_client=http) as client,
    ):
        return client.messages.create(
            model="alias", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )


class TestBlocks:
    def test_n01_the_sdk_reads_text_reasoning_and_calls(self) -> None:
        body = chat("tool_calls", content="naïve 🚀", reasoning="hm", tool_calls=[call('{"a":1}')])
        read = through_sdk(to_message(body, "alias"))
        thinking, text, tool = read.content
        assert isinstance(thinking, ThinkingBlock)
        assert (thinking.thinking, thinking.signature) == ("hm", OWN_SIGNATURE)
        assert isinstance(text, TextBlock)
        assert text.text == "naïve 🚀"
        assert isinstance(tool, ToolUseBlock)
        assert (tool.name, tool.input, tool.id) == ("f", {"a": 1}, toolu_id("call_1"))
        assert (read.id, read.model, read.stop_reason) == ("msg_x1", "alias", "tool_use")
        assert (read.usage.input_tokens, read.usage.output_tokens) == (11, 7)

    @pytest.mark.parametrize("content", ["", None])
    def test_an_empty_answer_is_one_empty_text(self, content: str | None) -> None:
        assert message(chat(content=content))["content"] == [{"type": "text", "text": ""}]

    def test_blank_text_beside_a_call_is_left_out(self) -> None:
        blocks = message(chat(content="\n\n", tool_calls=[call("{}")]))["content"]
        assert [block["type"] for block in blocks] == ["tool_use"]

    def test_reasoning_content_is_reasoning_too(self) -> None:
        assert message(chat(content="a", reasoning_content="r"))["content"][0]["thinking"] == "r"

    @pytest.mark.parametrize(
        ("arguments", "input"),
        [
            ("", {}),
            ("null", {}),
            (None, {}),
            ({"a": 1}, {"a": 1}),
            ('{"n": 12345678901234567890123}', {"n": 12345678901234567890123}),
            ('{"a": "x', {INVALID_JSON: '{"a": "x'}),
            ("[1]", {INVALID_JSON: "[1]"}),
        ],
    )
    def test_case_6_arguments_become_an_object(self, arguments: Any, input: Any) -> None:
        assert message(chat(tool_calls=[call(arguments)]))["content"][0]["input"] == input

    def test_calls_without_ids_get_ids_of_their_own(self) -> None:
        blocks = message(chat(tool_calls=[call("{}", id=None), call("{}", id="")]))["content"]
        assert len({block["id"] for block in blocks}) == 2

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b'{"choices":[]}', b'{"choices":[{}]}', b'{"choices":' + deep()]
    )
    def test_what_is_no_answer_is_refused(self, body: bytes) -> None:
        with pytest.raises(MalformedJSON):
            to_message(body, "alias")


class TestStopReasons:
    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("stop", "end_turn"),
            ("length", "max_tokens"),
            ("content_filter", "refusal"),
            ("tool_calls", "end_turn"),  # a client would wait for a call that never came
            ("repetition", "end_turn"),
        ],
    )
    def test_reasons_without_a_call(self, finish: str, reason: str) -> None:
        assert message(chat(finish, content="a"))["stop_reason"] == reason

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("tool_calls", "tool_use"),
            ("stop", "tool_use"),
            ("length", "max_tokens"),
            ("content_filter", "refusal"),
        ],
    )
    def test_case_9_a_call_is_reported_unless_it_was_cut(self, finish: str, reason: str) -> None:
        assert message(chat(finish, tool_calls=[call("{}")]))["stop_reason"] == reason

    @pytest.mark.parametrize(
        ("vllm", "reason", "sequence"),
        [("END", "stop_sequence", "END"), (128009, "end_turn", None), (None, "end_turn", None)],
    )
    def test_vllm_names_the_stop_string(self, vllm: Any, reason: str, sequence: Any) -> None:
        got = message(chat(content="a", more={"stop_reason": vllm}))
        assert (got["stop_reason"], got["stop_sequence"]) == (reason, sequence)

    def test_n12_a_refusal_is_told_with_its_words(self) -> None:
        read = through_sdk(to_message(chat(refusal="I can't."), "alias"))
        assert read.stop_reason == "refusal"
        assert read.stop_details is not None
        assert read.stop_details.explanation == "I can't."
        assert isinstance(read.content[0], TextBlock)
        assert read.content[0].text == "I can't."


class TestUsage:
    def test_cached_and_written_tokens_are_no_input_tokens(self) -> None:
        usage = message(
            chat(
                content="a",
                usage={
                    "prompt_tokens": 100,
                    "completion_tokens": 20,
                    "prompt_tokens_details": {"cached_tokens": 60, "created_cache_tokens": 30},
                    "completion_tokens_details": {"reasoning_tokens": 5},
                },
            )
        )["usage"]
        assert usage == {
            "input_tokens": 10,
            "cache_creation_input_tokens": 30,
            "cache_read_input_tokens": 60,
            "output_tokens": 20,
            "output_tokens_details": {"thinking_tokens": 5},
            "service_tier": None,
        }

    def test_absent_usage_is_estimated(self) -> None:
        usage = message(chat(content="a" * 400, usage=None))["usage"]
        assert usage["input_tokens"] == 10
        assert usage["output_tokens"] >= 100

    @pytest.mark.parametrize(
        ("tier", "want"), [("default", "standard"), ("priority", "priority"), ("flex", None)]
    )
    def test_service_tier(self, tier: str, want: str | None) -> None:
        body = {**json.loads(chat(content="a")), "service_tier": tier}
        assert message(json.dumps(body).encode())["usage"]["service_tier"] == want


class TestIds:
    @pytest.mark.parametrize("id", [None, "", "chatcmpl-", "chatcmpl-a.b:c", "msg_1", "resp_1"])
    def test_message_ids_look_like_anthropics(self, id: str | None) -> None:
        assert re.fullmatch(r"msg_[A-Za-z0-9_-]+", message_id(id))


def test_there_and_back_keeps_the_conversation() -> None:
    """An answer goes to the client; what the client sends next brings the upstream its own
    words, ids and arguments back."""
    arguments = '{"city": "Łódź", "n": 1.50}'
    calls = [call(arguments, id="functions.f:0"), call("{}", "g", "chatcmpl-tool-" + "a" * 32)]
    answer = chat("tool_calls", content="Let me see.", reasoning="why", tool_calls=calls)
    read = through_sdk(to_message(answer, "alias"))
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
        for block in read.content
        if isinstance(block, ToolUseBlock)
    ]
    following = {
        "model": "alias",
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [block.to_dict() for block in read.content]},
            {"role": "user", "content": results},
        ],
    }
    request = to_chat(read_messages_request(json.dumps(following).encode()), vllm=True)
    _, again, *answers = json.loads(bytes(request.members["messages"]))
    assert again["content"] == "Let me see."
    assert again["reasoning"] == "why"
    assert [c["id"] for c in again["tool_calls"]] == [c["id"] for c in calls]
    assert json.loads(again["tool_calls"][0]["function"]["arguments"]) == json.loads(arguments)
    assert [a["tool_call_id"] for a in answers] == [c["id"] for c in calls]
