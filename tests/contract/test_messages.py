"""N: Messages by Anthropic's SDK over every kind of upstream."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.contract.conftest import KINDS
from tests.contract.scripts import (
    WEATHER,
    Answer,
    ToolCall,
    answering,
    ask,
    begin_message,
    finish_message,
    message,
    named_event,
    stream_block,
)
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.upstream import Call, Upstream, chunk

every_kind = pytest.mark.parametrize("kind", KINDS)
TOOL: Any = {"name": "weather", "input_schema": WEATHER}


def say(marker: str, kind: str, **more: Any) -> dict[str, Any]:
    """A request."""
    turns = [{"role": "user", "content": marker}]
    return {"model": kind, "max_tokens": 50, "messages": turns, **more}


@every_kind
def test_n01_a_message_is_one(claude: Anthropic, scripted: Upstream, kind: str) -> None:
    scripted.on("n01-end", answering("good day"))
    raw = claude.messages.with_raw_response.create(**say("n01-end", kind))
    answer = raw.parse()
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", kind)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "good day"}]
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)
    assert raw.headers["request-id"]
    assert answer._request_id == raw.headers["request-id"]


@every_kind
def test_n02_a_stream_has_named_events(
    claude: Anthropic, bare: httpx.Client, scripted: Upstream, kind: str
) -> None:
    scripted.on("n02-end", answering("good day", ToolCall("toolu_rome")))
    with claude.messages.stream(**say("n02-end", kind, tools=[TOOL])) as stream:
        assert "".join(stream.text_stream) == "good day"
        final = stream.get_final_message()
    assert final.id.startswith("msg_")
    assert (final.model, final.stop_reason) == (kind, "tool_use")
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[1].to_dict()["input"] == {"city": "Rome"}
    assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 7)
    body = say("n02-end", kind, tools=[TOOL], stream=True)
    events = bare.post("/v1/messages", json=body).text.strip().split("\n\n")
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert events[-1].startswith("event: message_stop")
    assert "[DONE]" not in events[-1]


@every_kind
def test_n03_tokens_are_counted(claude: Anthropic, scripted: Upstream, kind: str) -> None:
    marker = f"n03-{kind}-end"
    scripted.on(marker, lambda call: call.respond(200, {"input_tokens": 14}))
    turns: Any = [{"role": "user", "content": marker}]
    counted = claude.messages.count_tokens(model=kind, messages=turns)
    if kind == "claude":
        assert counted.input_tokens == 14
        assert scripted.call_with(marker).path.endswith("/v1/messages/count_tokens")
    else:
        assert counted.input_tokens > 0
        assert not scripted.calls_with(marker)


def test_n04_both_ways_to_send_a_key_are_taken(site: Gateway, scripted: Upstream) -> None:
    scripted.on("n04-end", answering())
    for named in ("x-api-key", "Bearer"):
        headers = {"anthropic-version": "2023-06-01"}
        if named == "Bearer":
            headers["authorization"] = f"Bearer {TEAM_KEY}"
        else:
            headers["x-api-key"] = TEAM_KEY
        response = httpx.post(
            f"{site.url}/v1/messages", json=say("n04-end", "vllm"), headers=headers
        )
        assert response.status_code == 200
        models = httpx.get(f"{site.url}/v1/models", headers=headers)
        assert models.status_code == 200
    with (
        Anthropic(base_url=site.url, api_key="sk-nobody", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as raised,
    ):
        stranger.messages.create(**say("n04-end", "vllm"))
    assert raised.value.response.json()["type"] == "error"


def test_n05_unknown_betas_and_members_go_along_untouched(
    claude: Anthropic, scripted: Upstream
) -> None:
    scripted.on("n05-end", answering())
    field = {"unheard_of": {"z": 1, "a": [1.50, None]}}
    claude.beta.messages.create(
        **say("n05-end", "claude"), betas=["unheard-of-2027-01-01"], extra_body=field
    )
    call = scripted.call_with("n05-end")
    assert call.headers["anthropic-beta"] == "unheard-of-2027-01-01"
    assert call.headers["anthropic-version"] == "2026-10-21"
    assert call.json["unheard_of"] == field["unheard_of"]
    assert call.headers["x-api-key"] == "ANTHROPIC-SECRET"
    assert TEAM_KEY not in str(call.headers)


@pytest.mark.parametrize("kind", ["vllm", "compatible"])
def test_n05_over_chat_they_are_dropped(claude: Anthropic, scripted: Upstream, kind: str) -> None:
    marker = f"n05-{kind}-end"
    scripted.on(marker, answering())
    claude.beta.messages.create(
        **say(marker, kind), betas=["unheard-of-2027-01-01"], extra_body={"unheard_of": 1}
    )
    call = scripted.call_with(marker)
    assert "anthropic-beta" not in call.headers
    assert "unheard_of" not in call.json


@every_kind
@pytest.mark.parametrize("status", [503, 529])
def test_n06_an_overload_has_its_class(
    claude: Anthropic, scripted: Upstream, kind: str, status: int
) -> None:
    marker = f"n06-{kind}-{status}-end"
    error = {"type": "overloaded_error", "message": "Overloaded"}
    scripted.on(marker, lambda call: call.respond(status, {"type": "error", "error": error}))
    with pytest.raises(anthropic.APIStatusError) as raised:
        claude.messages.create(**say(marker, kind))
    assert raised.value.status_code == 529
    assert isinstance(raised.value, anthropic.OverloadedError)
    body: Any = raised.value.body
    assert body["error"]["type"] == "overloaded_error"


@every_kind
def test_n07_an_error_amid_the_stream_raises(
    claude: Anthropic, scripted: Upstream, kind: str
) -> None:
    marker = f"n07-{kind}-end"

    def script(call: Call) -> None:
        error = {"type": "overloaded_error", "message": "Overloaded"}
        if kind == "claude":
            begin_message(call)
            stream_block(call, 0, {"type": "text", "text": "one"})
            named_event(call, "error", error=error)
        else:
            call.start_stream()
            call.event(chunk("m", {"role": "assistant", "content": "one"}))
            call.event({"error": error})
        call.end()

    scripted.on(marker, script)
    said: list[str] = []
    with (
        claude.messages.stream(**say(marker, kind)) as stream,
        pytest.raises(anthropic.APIStatusError) as raised,
    ):
        said.extend(stream.text_stream)
    assert "".join(said) == "one"
    assert raised.value.status_code == 200
    body: Any = raised.value.body
    assert body["error"]["type"] == "overloaded_error"


THINKING: list[Any] = [
    {"type": "thinking", "thinking": "Rome, then.", "signature": "c2lnbmF0dXJl+/=="},
    {"type": "redacted_thinking", "data": "b3BhcXVl+/=="},
    {"type": "tool_use", "id": "toolu_rome", "name": "weather", "input": {"city": "Rome"}},
]


def test_n08_signatures_survive_a_tool_loop(claude: Anthropic, scripted: Upstream) -> None:
    whole = message(Answer(finish="tool_calls"), content=THINKING)
    scripted.on("n08-result", answering("It is sunny."))
    scripted.on("n08-end", lambda call: call.respond(200, whole))
    request = say("n08-end", "claude", tools=[TOOL], thinking={"type": "adaptive"})
    first = claude.messages.create(**request)
    assert [block.to_dict() for block in first.content] == THINKING
    result = {"type": "tool_result", "tool_use_id": "toolu_rome", "content": "n08-result"}
    request["messages"] += [
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    assert claude.messages.create(**request).content
    assert scripted.call_with("n08-result").json["messages"][1]["content"] == THINKING


def test_n08_and_one_of_chat(sdk: OpenAI, scripted: Upstream) -> None:
    whole = message(Answer(finish="tool_calls"), content=THINKING)
    scripted.on("n08-chat-result", answering("It is sunny."))
    scripted.on("n08-chat-end", lambda call: call.respond(200, whole))
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    request = ask("n08-chat-end", "claude", tools=[tool], reasoning_effort="low")
    first = sdk.chat.completions.create(**request).choices[0].message
    result = {"role": "tool", "tool_call_id": "toolu_rome", "content": "n08-chat-result"}
    request["messages"] += [first.to_dict(), result]
    assert sdk.chat.completions.create(**request).choices
    assert scripted.call_with("n08-chat-result").json["messages"][1]["content"] == THINKING


def test_n08_reasoning_of_chat_upstreams_returns_to_them(
    claude: Anthropic, scripted: Upstream
) -> None:
    scripted.on("n08-vllm-result", answering("It is sunny."))
    scripted.on("n08-vllm-end", answering("", ToolCall("toolu_rome"), reasoning="Rome, then."))
    request = say("n08-vllm-end", "vllm", tools=[TOOL], thinking={"type": "adaptive"})
    first = claude.messages.create(**request)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    assert first.content[0].signature
    called = first.content[1].id
    result = {"type": "tool_result", "tool_use_id": called, "content": "n08-vllm-result"}
    request["messages"] += [
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    claude.messages.create(**request)
    turn = scripted.call_with("n08-vllm-result").json["messages"][1]
    assert turn["reasoning"] == "Rome, then."


def test_n09_cached_tokens_are_split_alike_everywhere(
    site: Gateway, claude: Anthropic, sdk: OpenAI, scripted: Upstream
) -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 20,
        "output_tokens": 7,
    }
    scripted.on("n09-end", answering(said={"usage": usage}))
    mark = {"type": "ephemeral"}
    system: Any = [{"type": "text", "text": "long", "cache_control": mark}]
    raw = claude.messages.with_raw_response.create(**say("n09-end", "claude", system=system))
    seen = raw.parse().usage
    assert (seen.input_tokens, seen.cache_creation_input_tokens) == (3, 100)
    assert seen.cache_read_input_tokens == 20
    assert scripted.call_with("n09-end").json["system"][0]["cache_control"] == mark
    record = site.record(raw.headers["request-id"])
    assert record["cached_input_tokens"] == 20
    assert record["cache_write_tokens"] == 100
    assert record["input_tokens"] == 123
    chat = sdk.chat.completions.create(**ask("n09-end", "claude")).usage
    assert chat
    assert chat.prompt_tokens == 123
    assert chat.prompt_tokens_details
    assert chat.prompt_tokens_details.cached_tokens == 20


@pytest.mark.parametrize("kind", ["vllm"])
def test_n09_over_chat_the_split_is_the_same(
    claude: Anthropic, scripted: Upstream, kind: str
) -> None:
    def script(call: Call) -> None:
        details = {"cached_tokens": 20}
        usage = {"prompt_tokens": 123, "completion_tokens": 7, "prompt_tokens_details": details}
        said = {"role": "assistant", "content": "x"}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        call.respond(200, {"id": "c", "model": "m", "choices": [choice], "usage": usage})

    scripted.on(f"n09-{kind}-end", script)
    usage = claude.messages.create(**say(f"n09-{kind}-end", kind)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (103, 20)


def test_n10_the_system_array_stays_byte_for_byte(bare: httpx.Client, scripted: Upstream) -> None:
    scripted.on("n10-end", answering())
    system = (
        b'[ {"type":"text", "text":"x-anthropic-billing-header: a=1;\\u00e9"},'
        b'\n {"text":"Be \xc3\xa9.","type":"text","cache_control":{"type":"ephemeral"}} ]'
    )
    body = (
        b'{"model":"claude","max_tokens":9,"system":'
        + system
        + b',"messages":[{"role":"user","content":"n10-end"}]}'
    )
    assert bare.post("/v1/messages?beta=true", content=body).status_code == 200
    assert system in scripted.call_with("n10-end").body


@pytest.mark.parametrize("kind", ["vllm", "compatible"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_n11_the_version_without_sampling_refuses_it(
    claude: Anthropic, kind: str, name: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        claude.messages.create(**say("n11", kind), extra_body={name: 1})
    body: Any = raised.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert name in body["error"]["message"]


@every_kind
def test_n11_the_older_one_takes_it(claude: Anthropic, scripted: Upstream, kind: str) -> None:
    marker = f"n11-{kind}-end"
    scripted.on(marker, answering())
    claude.messages.create(
        **say(marker, kind),
        extra_body={"temperature": 0.5},
        extra_headers={"anthropic-version": "2023-06-01"},
    )
    assert scripted.call_with(marker).json["temperature"] == 0.5


@pytest.mark.parametrize("stream", [False, True])
def test_n12_a_refusal_is_a_content_filter_of_chat(
    sdk: OpenAI, scripted: Upstream, stream: bool
) -> None:
    marker = f"n12-refusal-{stream}-end"
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}

    def script(call: Call) -> None:
        if stream:
            begin_message(call)
            finish_message(call, stop_reason="refusal", stop_details=details)
        else:
            whole = message(Answer("partial", finish="content_filter"), stop_details=details)
            call.respond(200, whole)

    scripted.on(marker, script)
    answer: Any = sdk.chat.completions.create(**ask(marker, "claude", stream=stream))
    if stream:
        choices = [part.choices[0] for part in answer]
        assert "".join(choice.delta.refusal or "" for choice in choices) == "Not this."
        assert choices[-1].finish_reason == "content_filter"
    else:
        choice = answer.choices[0]
        assert choice.finish_reason == "content_filter"
        assert choice.message.refusal == "Not this."
        assert not choice.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_n12_a_refusal_stays_one_for_messages(
    claude: Anthropic, scripted: Upstream, stream: bool
) -> None:
    marker = f"n12-filter-{stream}-end"
    scripted.on(marker, answering("I will", finish="content_filter"))
    with claude.messages.stream(**say(marker, "vllm")) as events:
        final = events.get_final_message()
    whole = claude.messages.create(**say(marker, "vllm"))
    assert final.stop_reason == whole.stop_reason == "refusal"


def test_n12_a_paused_turn_passes_and_is_incomplete_for_chat(
    claude: Anthropic, sdk: OpenAI, scripted: Upstream
) -> None:
    """Only server tools pause a turn. A Messages client brings them itself and continues; chat
    clients can't have them, and learn that the answer is not all there."""
    scripted.on("n12-pause-end", answering("so far", said={"stop_reason": "pause_turn"}))
    assert claude.messages.create(**say("n12-pause-end", "claude")).stop_reason == "pause_turn"
    answer = sdk.chat.completions.create(**ask("n12-pause-end", "claude"))
    assert answer.choices[0].finish_reason == "length"
