"""What scripted upstreams say: one answer, in the format and mode that the call asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.harness.upstream import Call, chunk

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str) -> Any:
    """A tool of chat."""
    return {"type": "function", "function": {"name": name, "parameters": WEATHER}}


class ToolCall(NamedTuple):
    """A call of a tool."""

    id: str
    name: str = "weather"
    arguments: str = '{"city":"Rome"}'


@dataclass(frozen=True)
class Answer:
    """What the model says.

    Attributes:
        finish: in OpenAI's words; each format has its own.
        said: more members of the message, or of the Anthropic message itself.
    """

    text: str = "hello"
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    reasoning: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)


def answering(text: str = "hello", *calls: ToolCall, **more: Any) -> Callable[[Call], None]:
    """A script that gives this answer."""
    answer = Answer(text, calls, **({"finish": "tool_calls"} if calls else {}) | more)
    return lambda call: speak(call, answer)


def speak(call: Call, answer: Answer) -> None:
    """Answer in the format of the call's path."""
    streamed = call.json.get("stream")
    if call.path.endswith("/messages"):
        if streamed:
            _stream_message(call, answer)
        else:
            call.respond(200, message(answer))
    elif streamed:
        _stream_chat(call, answer)
    else:
        call.respond(200, _chat(call.json, answer))


def message(answer: Answer, **more: Any) -> dict[str, Any]:
    """A whole message of Anthropic's."""
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": "claude-upstream",
        "content": _blocks(answer),
        "stop_reason": STOP_REASONS[answer.finish],
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
        **answer.said,
        **more,
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "SIG=="})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def named_event(call: Call, kind: str, **body: Any) -> None:
    """One event of Anthropic's."""
    text = json.dumps({"type": kind, **body})
    call.chunk(f"event: {kind}\ndata: {text}\n\n".encode())


def begin_message(call: Call, **usage: Any) -> None:
    """The beginning of a message's stream."""
    call.start_stream()
    start = message(Answer("")) | {"content": [], "stop_reason": None}
    start["usage"] = {"input_tokens": 11, "output_tokens": 1, **usage}
    named_event(call, "message_start", message=start)


def stream_block(call: Call, index: int, block: dict[str, Any]) -> None:
    """One block, its content in two pieces."""
    kind = block["type"]
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
    opened = {**block, **empty.get(kind, {"input": {}})}
    named_event(call, "content_block_start", index=index, content_block=opened)
    name = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[kind]
    delta = {"tool_use": "input_json_delta"}.get(kind, f"{kind}_delta")
    whole = json.dumps(block["input"]) if kind == "tool_use" else block[name]
    for piece in (whole[:3], whole[3:]):
        named_event(call, "content_block_delta", index=index, delta={"type": delta, name: piece})
    if kind == "thinking":
        signature = {"type": "signature_delta", "signature": block["signature"]}
        named_event(call, "content_block_delta", index=index, delta=signature)
    named_event(call, "content_block_stop", index=index)


def finish_message(call: Call, **delta: Any) -> None:
    """The end of a message's stream."""
    named_event(call, "message_delta", delta=delta, usage={"output_tokens": 7})
    named_event(call, "message_stop")
    call.end()


def _stream_message(call: Call, answer: Answer) -> None:
    begin_message(call)
    for index, block in enumerate(_blocks(answer)):
        stream_block(call, index, block)
    finish_message(call, stop_reason=STOP_REASONS[answer.finish], stop_sequence=None)


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def _chat(body: dict[str, Any], answer: Answer) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": answer.text or None, **answer.said}
    if answer.reasoning:
        said["reasoning"] = answer.reasoning
    if answer.calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _function(call)}
            for call in answer.calls
        ]
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {"index": index, "message": said, "logprobs": None, "finish_reason": answer.finish}
            for index in range(body.get("n", 1))
        ],
        "usage": USAGE,
    }


def _stream_chat(call: Call, answer: Answer) -> None:
    model = call.json["model"]
    call.start_stream()
    for index in range(call.json.get("n", 1)):
        for delta in _deltas(answer):
            body = chunk(model, delta)
            body["choices"][0]["index"] = index
            call.event(body)
        body = chunk(model, {}, answer.finish)
        body["choices"][0]["index"] = index
        call.event(body)
    if (call.json.get("stream_options") or {}).get("include_usage"):
        call.event({**chunk(model, {}), "choices": [], "usage": USAGE})
    call.event("[DONE]")
    call.end()


def _deltas(answer: Answer) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if answer.reasoning:
        deltas.append({"reasoning": answer.reasoning})
    deltas += [{"content": piece} for piece in (answer.text[:3], answer.text[3:]) if piece]
    for index, call in enumerate(answer.calls):
        opening = {"name": call.name, "arguments": ""}
        first = {"index": index, "id": call.id, "type": "function", "function": opening}
        deltas.append({"tool_calls": [first]})
        for piece in (call.arguments[:4], call.arguments[4:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def ask(marker: str, model: str, **more: Any) -> dict[str, Any]:
    """A chat request for a script."""
    turns: list[Any] = [{"role": "user", "content": marker}]
    return {"model": model, "messages": turns, "max_tokens": 50, **more}
