"""Cases that other tests don't name: 12, 14, 16, 17 and 56, and more kinds for 9 and 11."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.contract.scripts import ToolCall, answering, ask, function
from tests.harness.gateway import Gateway
from tests.harness.upstream import USAGE, Call, Upstream, chunk

OPENAI_KINDS = ["vllm", "compatible"]
TOOLS: Any = [function("weather")]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}

every_kind = pytest.mark.parametrize("kind", OPENAI_KINDS)


def streaming(*deltas: dict[str, Any], finish: str = "stop") -> Any:
    """A script that streams deltas as they are."""

    def script(call: Call) -> None:
        call.start_stream()
        for delta in deltas:
            call.event(chunk("backend-model", delta))
        call.event(chunk("backend-model", {}, finish))
        call.event("[DONE]")
        call.end()

    return script


def choices_of(sdk: OpenAI, request: dict[str, Any]) -> list[Any]:
    parts = sdk.chat.completions.create(**request, stream=True)
    return [choice for part in parts for choice in part.choices]


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_case_9_a_call_that_ends_with_stop_ends_as_a_call(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    scripted.on("case9-end", answering("", ToolCall("call_1"), finish="stop"))
    request = ask("case9-end", kind, tools=TOOLS)
    if stream:
        assert choices_of(sdk, request)[-1].finish_reason == "tool_calls"
    else:
        answer = sdk.chat.completions.create(**request)
        assert answer.choices[0].finish_reason == "tool_calls"


@every_kind
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_case_9_a_call_that_was_cut_stays_cut(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool, finish: str
) -> None:
    marker = f"case9-{finish}-end"
    scripted.on(marker, answering("", ToolCall("call_1"), finish=finish))
    request = ask(marker, kind, tools=TOOLS)
    if stream:
        assert choices_of(sdk, request)[-1].finish_reason == finish
    else:
        assert sdk.chat.completions.create(**request).choices[0].finish_reason == finish


@every_kind
def test_case_11_a_missing_index_is_filled_in(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    first = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    second = {"id": "b", "type": "function", "function": {"name": "weather", "arguments": ""}}
    rest = {"id": "b", "function": {"arguments": "{}"}}
    script = streaming(
        {"tool_calls": [first]},
        {"tool_calls": [second]},
        {"tool_calls": [rest]},
        finish="tool_calls",
    )
    scripted.on("case11-end", script)
    with sdk.chat.completions.stream(**ask("case11-end", kind, tools=TOOLS)) as stream:
        calls: Any = stream.get_final_completion().choices[0].message.tool_calls
    assert [(call.id, call.function.arguments) for call in calls] == [("a", "{}"), ("b", "{}")]


@every_kind
def test_case_12_the_first_delta_of_a_named_call_has_its_type(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    script = streaming(
        {"role": "assistant"},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    )
    scripted.on("case12-end", script)
    request = ask("case12-end", kind, tools=TOOLS, tool_choice=NAMED)
    deltas = [call for choice in choices_of(sdk, request) for call in choice.delta.tool_calls or []]
    assert [delta.type for delta in deltas] == ["function", None]


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_case_14_a_named_call_ends_alike_in_both_modes(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    scripted.on("case14-end", answering("", ToolCall("call_1"), finish="stop"))
    request = ask("case14-end", kind, tools=TOOLS, tool_choice=NAMED)
    if stream:
        assert choices_of(sdk, request)[-1].finish_reason == "tool_calls"
    else:
        answer = sdk.chat.completions.create(**request)
        assert answer.choices[0].finish_reason == "tool_calls"


FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "City",
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_case_16_a_format_beside_tools_stays_content(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("case16-text", answering('{"city":"Rome"}'))
    request = ask("case16-text", "claude", tools=TOOLS, response_format=FORMAT)
    choices = choices_of(sdk, request)
    text = "".join(choice.delta.content or "" for choice in choices)
    assert json.loads(text) == {"city": "Rome"}
    assert choices[-1].finish_reason == "stop"
    assert not any(choice.delta.tool_calls for choice in choices)
    assert len(scripted.call_with("case16-text").json["tools"]) == 1  # none of our own


def test_case_16_and_a_call_stays_a_call(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("case16-call", answering("", ToolCall("toolu_1")))
    request = ask("case16-call", "claude", tools=TOOLS, response_format=FORMAT)
    choices = choices_of(sdk, request)
    assert choices[-1].finish_reason == "tool_calls"
    assert any(choice.delta.tool_calls for choice in choices)
    assert not any(choice.delta.content for choice in choices)


def bare_message(call: Call) -> None:
    """A message without any of the members that may be absent."""
    usage = {"input_tokens": 11, "output_tokens": 1}
    shell: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    ending = {"stop_reason": "end_turn"}
    if not call.json.get("stream"):
        content = [{"type": "text", "text": "hello"}]
        call.respond(200, {**shell, **ending, "content": content, "usage": usage})
        return
    call.start_stream()
    text = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": "hello"}
    for event in (
        {"type": "message_start", "message": {**shell, "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ):
        call.chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    call.end()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_case_17_optional_members_may_be_absent_in_both_modes(
    site: Gateway, bare: httpx.Client, scripted: Upstream, path: str, stream: bool
) -> None:
    scripted.on("case17-end", bare_message)
    response = bare.post(f"/v1/{path}", json=ask("case17-end", "claude", stream=stream))
    assert response.status_code == 200
    assert "hello" in response.text
    assert '"error"' not in response.text
    record = site.record(response.headers["x-request-id"])
    assert (record["status"], record["input_tokens"]) == ("ok", 11)


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_case_56_choices_stay_distinct_and_the_prompt_counts_once(
    site: Gateway, sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    def script(call: Call) -> None:
        if not stream:
            choices = [
                {
                    "index": n,
                    "message": {"role": "assistant", "content": t},
                    "finish_reason": "stop",
                }
                for n, t in enumerate(("left", "right"))
            ]
            body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
            call.respond(200, {**body, "choices": choices, "usage": USAGE})
            return
        call.start_stream()
        for piece in (("le", "ri"), ("ft", "ght")):
            for index, text in enumerate(piece):
                event = chunk("m", {"content": text})
                event["choices"][0]["index"] = index
                call.event(event)
        for index in (0, 1):
            event = chunk("m", {}, "stop")
            event["choices"][0]["index"] = index
            call.event(event)
        call.event({**chunk("m", {}), "choices": [], "usage": USAGE})
        call.event("[DONE]")
        call.end()

    marker = f"case56-{kind}-{stream}-end"
    scripted.on(marker, script)
    raw = sdk.chat.completions.with_raw_response.create(**ask(marker, kind, n=2, stream=stream))
    texts = {0: "", 1: ""}
    answer: Any = raw.parse()
    for part in answer if stream else [answer]:
        for choice in part.choices:
            said = choice.delta if stream else choice.message
            texts[choice.index] += said.content or ""
    assert texts == {0: "left", 1: "right"}
    record = site.record(raw.headers["x-request-id"])
    assert (record["input_tokens"], record["output_tokens"]) == (11, 7)
