"""C: chat by OpenAI's SDK over every kind of upstream."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.contract.conftest import KINDS
from tests.contract.scripts import (
    WEATHER,
    ToolCall,
    answering,
    ask,
    begin_message,
    function,
    stream_block,
)
from tests.harness.gateway import Gateway
from tests.harness.upstream import Call, Upstream, chunk

OPENAI_KINDS = ["vllm", "compatible"]
ROME, OSLO = ToolCall("call_rome"), ToolCall("call_oslo", arguments='{"city":"Oslo"}')
TOOLS: Any = [function("weather"), function("news")]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = base64.b64encode(b"%PDF-1.4\n%%EOF").decode()

every_kind = pytest.mark.parametrize("kind", KINDS)


class City(BaseModel):
    city: str


def chunks_of(sdk: OpenAI, request: dict[str, Any]) -> list[Any]:
    return list(sdk.chat.completions.create(**request, stream=True))


@every_kind
def test_c01_a_minimal_chat_is_a_valid_object(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c01-end", answering("good day"))
    answer = sdk.chat.completions.create(**ask("c01-end", kind))
    assert (answer.object, answer.model) == ("chat.completion", kind)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "good day"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@every_kind
def test_c02_a_stream_names_the_role_first_and_finishes_once(
    bare: httpx.Client, sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    scripted.on("c02-end", answering("good day"))
    parts = chunks_of(sdk, ask("c02-end", kind))
    assert {part.object for part in parts} == {"chat.completion.chunk"}
    assert {part.model for part in parts} == {kind}
    assert len({part.id for part in parts}) == 1
    deltas = [part.choices[0].delta for part in parts]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "good day"
    reasons = [part.choices[0].finish_reason for part in parts]
    assert [reason for reason in reasons if reason] == ["stop"]
    text = bare.post("/v1/chat/completions", json=ask("c02-end", kind, stream=True)).text
    assert text.endswith("\n\ndata: [DONE]\n\n")


@every_kind
def test_c03_asked_usage_is_the_last_chunk(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c03-end", answering())
    parts = chunks_of(sdk, ask("c03-end", kind, stream_options={"include_usage": True}))
    assert parts[-1].choices == []
    assert parts[-1].usage.total_tokens == 18
    assert not any(part.usage for part in parts[:-1])


@every_kind
def test_c04_unasked_usage_is_in_no_chunk(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c04-end", answering())
    parts = chunks_of(sdk, ask("c04-end", kind))
    assert all(part.choices and part.usage is None for part in parts)


@pytest.mark.parametrize("kind", OPENAI_KINDS)
def test_c05_both_choices_of_a_stream_finish(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c05-end", answering("good day"))
    parts = chunks_of(sdk, ask("c05-end", kind, n=2))
    texts, finished = {0: "", 1: ""}, []
    for choice in (choice for part in parts for choice in part.choices):
        texts[choice.index] += choice.delta.content or ""
        finished += [choice.index] if choice.finish_reason else []
    assert texts == {0: "good day", 1: "good day"}
    assert finished == [0, 1]


@every_kind
def test_c06_a_tool_is_called_with_json(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c06-end", answering("", ROME))
    answer = sdk.chat.completions.create(**ask("c06-end", kind, tools=TOOLS, tool_choice="auto"))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert (call.id, call.type, call.function.name) == ("call_rome", "function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Rome"}


@every_kind
def test_c07_a_streamed_call_is_put_together_by_the_helper(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    scripted.on("c07-end", answering("let me see", ROME))
    with sdk.chat.completions.stream(**ask("c07-end", kind, tools=TOOLS)) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    ids = [
        call.id
        for event in events
        if event.type == "chunk"
        for choice in event.chunk.choices
        for call in choice.delta.tool_calls or []
        if call.id
    ]
    assert ids == ["call_rome"]
    message = final.choices[0].message
    assert message.content == "let me see"
    assert message.tool_calls
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
    assert final.choices[0].finish_reason == "tool_calls"


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_c08_parallel_calls_are_told_apart(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    scripted.on("c08-end", answering("both", ROME, OSLO))
    request = ask("c08-end", kind, tools=TOOLS)
    if stream:
        with sdk.chat.completions.stream(**request) as events:
            seen = [
                call.index
                for event in events
                if event.type == "chunk"
                for choice in event.chunk.choices
                for call in choice.delta.tool_calls or []
            ]
            assert sorted(set(seen)) == [0, 1]
            calls: Any = events.get_final_completion().choices[0].message.tool_calls
    else:
        calls = sdk.chat.completions.create(**request).choices[0].message.tool_calls
    assert [call.id for call in calls] == ["call_rome", "call_oslo"]
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Rome", "Oslo"]


@every_kind
@pytest.mark.parametrize("named", [False, True])
def test_c09_a_call_can_be_required(
    sdk: OpenAI, scripted: Upstream, kind: str, named: bool
) -> None:
    marker = f"c09-{kind}-{named}-end"
    scripted.on(marker, answering("", ROME))
    choice: Any = {"type": "function", "function": {"name": "weather"}} if named else "required"
    answer = sdk.chat.completions.create(**ask(marker, kind, tools=TOOLS, tool_choice=choice))
    assert answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    sent = scripted.call_with(marker).json["tool_choice"]
    if kind == "claude":
        choice = {"type": "tool", "name": "weather"} if named else {"type": "any"}
    assert sent == choice


@every_kind
def test_c10_parallel_calls_can_be_forbidden(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c10-{kind}-end"
    scripted.on(marker, answering("", ROME))
    sdk.chat.completions.create(**ask(marker, kind, tools=TOOLS, parallel_tool_calls=False))
    sent = scripted.call_with(marker).json
    if kind == "claude":
        assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    else:
        assert sent["parallel_tool_calls"] is False


@every_kind
def test_c11_a_tools_result_leads_to_an_answer(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c11-{kind}-end"
    scripted.on("sunny in Rome", answering("It is sunny."))
    scripted.on(marker, answering("", ROME))
    request = ask(marker, kind, tools=TOOLS)
    first: Any = sdk.chat.completions.create(**request).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny in Rome"}
    request["messages"] += [first.model_dump(exclude_none=True), result]
    # the script of the first turn would match again
    request["messages"][0]["content"] = f"c11-again-{kind}"
    answer = sdk.chat.completions.create(**request)
    assert answer.choices[0].message.content == "It is sunny."
    turns = scripted.call_with(f"c11-again-{kind}").json["messages"]
    if kind == "claude":
        assert turns[1]["content"][0]["id"] == turns[2]["content"][0]["tool_use_id"]
    else:
        assert turns[2] == result


@every_kind
def test_c12_a_schema_is_parsed(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c12-{kind}-end"
    scripted.on(marker, answering('{"city":"Rome"}'))
    parsed = sdk.chat.completions.parse(**ask(marker, kind), response_format=City)
    assert parsed.choices[0].message.parsed == City(city="Rome")
    sent = scripted.call_with(marker).json
    if kind == "claude":
        assert sent["output_config"]["format"]["type"] == "json_schema"
        assert sent["output_config"]["format"]["schema"]["additionalProperties"] is False
    else:
        assert sent["response_format"]["json_schema"]["name"] == "City"


@every_kind
def test_c13_json_can_be_asked_for(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c13-{kind}-end"
    scripted.on(marker, answering('{"city":"Rome"}'))
    form: Any = {"type": "json_object"}
    answer = sdk.chat.completions.create(**ask(marker, kind, response_format=form))
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Rome"}
    sent = scripted.call_with(marker).json
    if kind == "claude":
        assert "JSON" in json.dumps(sent["system"])
    else:
        assert sent["response_format"] == form


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_c14_an_answer_that_was_cut_says_so(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    marker = f"c14-{kind}-{stream}-end"
    scripted.on(marker, answering("h", finish="length"))
    request = {"model": kind, "max_completion_tokens": 1, "stream": stream}
    turns: Any = [{"role": "user", "content": marker}]
    answer: Any = sdk.chat.completions.create(**request, messages=turns)  # type: ignore[call-overload]
    last = list(answer)[-1] if stream else answer
    assert last.choices[0].finish_reason == "length"
    sent = scripted.call_with(marker).json
    bounds = [sent.get(name) for name in ("max_tokens", "max_completion_tokens")]
    assert [bound for bound in bounds if bound is not None] == [1]


@every_kind
def test_c15_a_cut_answer_is_not_parsed(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("c15-end", answering('{"ci', finish="length"))
    with pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(**ask("c15-end", kind), response_format=City)


@every_kind
def test_c16_stops_reach_the_upstream(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c16-{kind}-end"
    said = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    scripted.on(marker, answering("before", said=said if kind == "claude" else {}))
    answer = sdk.chat.completions.create(**ask(marker, kind, stop="END"))
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "before"
    sent = scripted.call_with(marker).json
    assert sent["stop_sequences" if kind == "claude" else "stop"] in ("END", ["END"])


def test_c17_logprobs_are_refused_where_there_are_none(sdk: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(**ask("c17", "claude", logprobs=True))
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", "logprobs")


def test_c18_so_are_several_choices(sdk: OpenAI, scripted: Upstream) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(**ask("c18-refused", "claude", n=2))
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", "n")
    assert not scripted.calls_with("c18-refused")


@every_kind
def test_c19_an_image_is_taken(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c19-{kind}-end"
    scripted.on(marker, answering("a dot"))
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    turns: Any = [{"role": "user", "content": [{"type": "text", "text": marker}, image]}]
    answer = sdk.chat.completions.create(model=kind, max_tokens=9, messages=turns)
    assert answer.choices[0].message.content == "a dot"
    content = scripted.call_with(marker).json["messages"][0]["content"]
    if kind == "claude":
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        assert content[1] == {"type": "image", "source": source}
    else:
        assert content[1] == image


def test_c20_a_pdf_is_a_document(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("c20-end", answering("a page"))
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    parts = [{"type": "text", "text": "c20-end"}, {"type": "file", "file": file}]
    turns: Any = [{"role": "user", "content": parts}]
    answer = sdk.chat.completions.create(model="claude", max_tokens=9, messages=turns)
    assert answer.choices[0].message.content == "a page"
    document = scripted.call_with("c20-end").json["messages"][0]["content"][1]
    assert document["type"] == "document"
    assert document["source"]["data"] == PDF


@every_kind
def test_c21_developers_speak_for_the_system(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    marker = f"c21-{kind}-end"
    scripted.on(marker, answering("short"))
    turns: Any = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": marker},
    ]
    answer = sdk.chat.completions.create(model=kind, max_tokens=9, messages=turns)
    assert answer.choices[0].message.content == "short"
    assert "Be short." in scripted.call_with(marker).body.decode()


@every_kind
@pytest.mark.parametrize("stream", [False, True])
def test_c22_functions_of_old_are_called(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    marker = f"c22-{kind}-{stream}-end"

    def old(call: Call) -> None:
        said = {"function_call": {"name": "weather", "arguments": '{"city":"Rome"}'}}
        if call.json.get("tools"):
            answering("", ROME)(call)
        elif call.json.get("stream"):
            call.start_stream()
            call.event(chunk("m", {"role": "assistant", **said}))
            call.event(chunk("m", {}, "function_call"))
            call.event("[DONE]")
            call.end()
        else:
            answering("", finish="function_call", said=said)(call)

    scripted.on(marker, old)
    functions = [{"name": "weather", "parameters": WEATHER}]
    request = ask(marker, kind, functions=functions, stream=stream)
    answer: Any = sdk.chat.completions.create(**request)
    name, arguments, reasons = "", "", []
    for part in answer if stream else [answer]:
        choice = part.choices[0]
        said = (choice.delta if stream else choice.message).function_call
        name += (said and said.name) or ""
        arguments += (said and said.arguments) or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (name, json.loads(arguments)) == ("weather", {"city": "Rome"})
    assert reasons == ["function_call"]


VLLM_KEYS: dict[str, Any] = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "chat_template_kwargs": {"enable_thinking": False},
    "structured_outputs": {"choice": ["a", "b"]},
    "min_tokens": 2,
    "ignore_eos": True,
    "stop_token_ids": [7],
    "bad_words": ["x"],
    "priority": 3,
}


def test_c23_vllms_own_members_reach_vllm(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("c23-end", answering())
    sdk.chat.completions.create(**ask("c23-end", "vllm"), extra_body=VLLM_KEYS)
    sent = scripted.call_with("c23-end").json
    assert {name: sent[name] for name in VLLM_KEYS} == VLLM_KEYS


def test_c23_vllms_former_members_still_constrain(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("c23-guided-end", answering())
    former = {"guided_choice": ["a", "b"], "guided_decoding_backend": "outlines"}
    sdk.chat.completions.create(**ask("c23-guided-end", "vllm"), extra_body=former)
    sent = scripted.call_with("c23-guided-end").json
    assert sent["structured_outputs"] == {"choice": ["a", "b"]}
    assert not sent.keys() & former.keys()


@pytest.mark.parametrize("name", [name for name in VLLM_KEYS if name != "top_k"])
def test_c24_anthropic_upstreams_refuse_them_by_name(sdk: OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(**ask("c24", "claude"), extra_body={name: VLLM_KEYS[name]})
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", name)


def test_c24_compatible_upstreams_may_know_them(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("c24-end", answering())
    sdk.chat.completions.create(**ask("c24-end", "compatible"), extra_body=VLLM_KEYS)
    sent = scripted.call_with("c24-end").json
    assert {name: sent[name] for name in VLLM_KEYS} == VLLM_KEYS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["vllm", "claude"])
def test_c25_reasoning_is_shown(sdk: OpenAI, scripted: Upstream, kind: str, stream: bool) -> None:
    marker = f"c25-{kind}-{stream}-end"
    scripted.on(marker, answering("42", reasoning="six times seven"))
    request = ask(marker, kind, reasoning_effort="low", stream=stream)
    answer: Any = sdk.chat.completions.create(**request)
    parts = list(answer) if stream else [answer]
    said = [part.choices[0].delta if stream else part.choices[0].message for part in parts]
    reasoning = [getattr(piece, "reasoning_content", None) or "" for piece in said]
    assert "".join(reasoning) == "six times seven"
    assert "".join(piece.content or "" for piece in said) == "42"
    sent = scripted.call_with(marker).json
    if kind == "claude":
        assert sent["thinking"]["type"] == "adaptive"
        assert sent["output_config"] == {"effort": "low"}
    else:
        assert sent["reasoning_effort"] == "low"


def test_c25_reasoning_tokens_are_counted(sdk: OpenAI, scripted: Upstream) -> None:
    usage = {
        "input_tokens": 11,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 5},
    }
    scripted.on("c25-usage", answering("42", reasoning="hm", said={"usage": usage}))
    answer = sdk.chat.completions.create(**ask("c25-usage", "claude", reasoning_effort="low"))
    assert answer.usage
    assert answer.usage.completion_tokens_details
    assert answer.usage.completion_tokens_details.reasoning_tokens == 5


def begin(call: Call) -> None:
    """The beginning of a stream in the call's format: the text `one`."""
    if call.path.endswith("/messages"):
        begin_message(call)
        stream_block(call, 0, {"type": "text", "text": "one"})
    else:
        call.start_stream()
        call.event(chunk("m", {"role": "assistant", "content": "one"}))


@every_kind
@pytest.mark.parametrize("how", ["c26", "c27"])
def test_c26_and_c27_a_stream_that_breaks_off_raises(
    sdk: OpenAI, scripted: Upstream, kind: str, how: str
) -> None:
    marker = f"{how}-{kind}-end"

    def script(call: Call) -> None:
        begin(call)
        if how == "c26":
            time.sleep(0.05)
            call.reset()
        else:
            call.end()

    scripted.on(marker, script)
    parts: list[Any] = []
    stream = sdk.chat.completions.create(**ask(marker, kind), stream=True)
    with pytest.raises(openai.APIError) as raised:
        parts.extend(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "one"
    assert raised.value.message


@every_kind
def test_c28_a_client_that_leaves_stops_the_upstream(
    site: Gateway, sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    marker = f"c28-{kind}-end"

    def script(call: Call) -> None:
        begin(call)
        call.wait_for_client_to_leave(5)

    scripted.on(marker, script)
    stream = sdk.chat.completions.create(**ask(marker, kind), stream=True)
    for part in stream:
        if part.choices[0].delta.content:
            break
    request_id = stream.response.headers["x-request-id"]
    left = time.monotonic()
    stream.close()
    call = scripted.call_with(marker)
    assert call.ended.wait(5)
    assert call.closed_by_client_at is not None
    assert call.closed_by_client_at - left < 1
    record = site.record(request_id)
    assert record["status"] == "cancelled"
    assert record["output_tokens"] > 0


@every_kind
def test_c29_silence_is_filled_with_comments(
    bare: httpx.Client, scripted: Upstream, kind: str
) -> None:
    marker = f"c29-{kind}-end"

    def script(call: Call) -> None:
        time.sleep(1)
        answering("late")(call)

    scripted.on(marker, script)
    body = ask(marker, kind, stream=True)
    response = bare.post("/v1/chat/completions", json=body)
    lines = response.text.splitlines()
    assert "data: [DONE]" in lines
    del body["stream"]

    def gap(call: Call) -> None:
        begin(call)
        time.sleep(1)
        call.reset()

    scripted.on(f"c29-gap-{kind}", gap)
    silent = ask(f"c29-gap-{kind}", kind, stream=True)
    with bare.stream("POST", "/v1/chat/completions", json=silent) as streamed:
        comments = [line for line in streamed.iter_lines() if line.startswith(":")]
    assert len(comments) >= 2


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_c30_a_choice_without_tools_is_dropped_or_refused(
    sdk: OpenAI, scripted: Upstream, choice: str
) -> None:
    marker = f"c30-{choice}-end"
    scripted.on(marker, answering())
    request = ask(marker, "claude", tool_choice=choice)
    if choice == "required":
        with pytest.raises(openai.BadRequestError) as raised:
            sdk.chat.completions.create(**request)
        assert raised.value.param == "tool_choice"
    else:
        sdk.chat.completions.create(**request)
        assert "tool_choice" not in scripted.call_with(marker).json


def test_c31_no_tools_at_all_are_none(sdk: OpenAI, scripted: Upstream) -> None:
    scripted.on("c31-end", answering())
    assert sdk.chat.completions.create(**ask("c31-end", "claude", tools=[])).choices
    assert "tools" not in scripted.call_with("c31-end").json


@pytest.mark.parametrize(
    ("status", "body", "ours"),
    [
        (404, {"detail": "Not Found"}, 404),
        (401, {"error": "Unauthorized"}, 502),
        (400, {"error": "no such thing"}, 400),
        (500, {"detail": "Internal Server Error"}, 502),
        (400, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_c32_every_form_of_an_error_becomes_an_object(
    sdk: OpenAI,
    scripted: Upstream,
    status: int,
    body: dict[str, Any],
    ours: int,
    stream: bool,
) -> None:
    marker = f"c32-{status}-{len(json.dumps(body))}-{stream}-end"
    scripted.on(marker, lambda call: call.respond(status, body))
    kind = "vllm"
    if status == 401:  # its credential rests afterwards
        kind = "c32-compatible" if stream else "c32-vllm"
    with pytest.raises(openai.APIStatusError) as raised:
        sdk.chat.completions.create(**ask(marker, kind), stream=stream)
    assert raised.value.status_code == ours
    error = raised.value.response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]


LONG_ID = "chatcmpl-tool-" + "0123456789abcdef" * 2
FOREIGN_ID = "functions.f:0"


def loop(marker: str, *ids: str) -> Any:
    """A conversation in which the calls of these ids were answered."""
    calls = [
        {"id": id_, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        for id_ in ids
    ]
    return [
        {"role": "user", "content": marker},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id_, "content": "dry"} for id_ in ids),
    ]


@pytest.mark.parametrize("kind", ["compatible", "vllm"])
def test_c33_long_ids_fit_openai(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    """As those of a conversation that began with vLLM, whose own ids they are."""
    marker = f"c33-{kind}-end"
    scripted.on(marker, answering())
    turns = [*loop("?", LONG_ID, "fine_1"), {"role": "user", "content": marker}]
    sdk.chat.completions.create(model=kind, max_tokens=9, messages=turns, tools=TOOLS)
    sent = scripted.call_with(marker).json["messages"]
    called = [call["id"] for call in sent[1]["tool_calls"]]
    assert [turn["tool_call_id"] for turn in sent[2:4]] == called
    assert called[1] == "fine_1"
    assert (called[0] == LONG_ID) == (kind == "vllm")
    assert kind == "vllm" or len(called[0]) <= 40


def test_c33_a_messages_clients_long_ids_fit_openai(bare: httpx.Client, scripted: Upstream) -> None:
    scripted.on("c33-end", answering())
    use = {"type": "tool_use", "id": LONG_ID, "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": LONG_ID, "content": "c33-end"}
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "compatible", "max_tokens": 9, "messages": turns}
    assert bare.post("/v1/messages", json=body).status_code == 200
    sent = scripted.call_with("c33-end").json["messages"]
    called = sent[1]["tool_calls"][0]["id"]
    assert sent[2]["tool_call_id"] == called
    assert len(called) <= 40


def test_c34_ids_that_anthropic_refuses_are_mapped_in_pairs(
    sdk: OpenAI, scripted: Upstream
) -> None:
    scripted.on("c34-end", answering())
    turns = loop("c34-end", FOREIGN_ID, "functions.f:1", "fine_1")
    sdk.chat.completions.create(model="claude", max_tokens=9, messages=turns, tools=TOOLS)
    sent = scripted.call_with("c34-end").json["messages"]
    called = [block["id"] for block in sent[1]["content"]]
    assert [block["tool_use_id"] for block in sent[2]["content"]] == called
    assert len(set(called)) == 3
    assert called[2] == "fine_1"
    assert all(name.replace("_", "").replace("-", "").isalnum() for name in called)
