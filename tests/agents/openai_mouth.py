"""The model server's OpenAI door: chat completions, as a reasoning model of OpenAI's takes them."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

from tests.agents.model_server import (
    CONTEXT,
    Conversation,
    ModelServer,
    Refused,
    Said,
    ToolCall,
    Turn,
    Usage,
    image_of,
    matched_results,
    only,
    pieces,
    require,
)
from tests.harness.upstream import Call

KEY = "openai-provider-key"

_MEMBERS = (
    "messages model max_completion_tokens reasoning_effort response_format stop stream"
    " stream_options tools tool_choice parallel_tool_calls safety_identifier service_tier"
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_IMAGE = re.compile(r"data:([a-z/]+);base64,(.*)")
_FINISH = {
    "stop": "stop",
    "stop_sequence": "stop",
    "tools": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}


class OpenAIMouth(ModelServer):
    """Reads and writes chat completions."""

    def read(self, call: Call) -> Conversation:
        if call.headers.get("authorization") != f"Bearer {KEY}":
            raise Refused("Incorrect API key provided", "invalid_api_key", 401)
        require(call.path == "/v1/chat/completions", f"Invalid URL {call.path}")
        foreign = [name for name in call.headers if name.startswith("anthropic")]
        require(not foreign, f"headers of another vendor: {foreign}")
        body = only(call.json, _MEMBERS, "request")
        require("stream" in body or "stream_options" not in body, "stream_options without stream")
        require(isinstance(body.get("max_completion_tokens"), int), "no max_completion_tokens")
        effort = body.get("reasoning_effort")
        require(effort in (None, "none", "low", "medium", "high"), f"reasoning_effort {effort}")
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        require(len(stops) <= 4, "at most 4 stop sequences")
        system, turns = self._turns(body.get("messages") or [])
        tools, choice = _tools(body)
        return Conversation(
            system,
            tuple(turns),
            body["max_completion_tokens"],
            tools,
            choice,
            body.get("parallel_tool_calls", True),
            _schema(body.get("response_format")),
            tuple(stops),
            effort not in (None, "none"),
        )

    def _turns(self, messages: list[Any]) -> tuple[str, list[Turn]]:
        """Results join into the user's turn after the calls, what the user says beside them too."""
        require(messages, "messages: empty array")
        system: list[str] = []
        turns: list[Turn] = []
        for place, message in enumerate(messages):
            role = message.get("role")
            if role in ("system", "developer"):
                require(not turns, "this model takes system messages at the start")
                system.append(_text(only(message, "role content", f"messages[{place}]")["content"]))
            elif role == "assistant":
                turns.append(_assistant(message, f"messages[{place}]"))
            else:
                turn = _user(message, f"messages[{place}]")
                if turns and turns[-1].role == "user":
                    require(
                        not (turn.results and turns[-1].text), "a tool message after the user's"
                    )
                    turns[-1] = replace(
                        turn,
                        text=(turns[-1].text + " " + turn.text).strip(),
                        images=turns[-1].images + turn.images,
                        results=turns[-1].results + turn.results,
                    )
                else:
                    turns.append(turn)
        matched_results(
            turns,
            "An assistant message with 'tool_calls' must be followed by tool messages responding"
            " to each 'tool_call_id'",
        )
        require(turns and turns[-1].role == "user", "nothing to answer")
        return "\n".join(system), turns

    def refuse(self, call: Call, refused: Refused) -> None:
        error = {"message": str(refused), "type": "invalid_request_error", "param": None}
        call.respond(refused.status, {"error": {**error, "code": refused.code}})

    def too_long(self, tokens: int) -> Refused:
        return Refused(
            f"This model's maximum context length is {CONTEXT} tokens. However, your messages"
            f" resulted in {tokens} tokens. Please reduce the length of the messages.",
            "context_length_exceeded",
        )

    def call_id(self, number: int, place: int) -> str:
        return f"call_{number:012d}{place:012d}"

    def whole(
        self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage
    ) -> dict[str, Any]:
        refused = said.reason == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused or calls else said.text,
            "refusal": said.text if refused else None,
            "annotations": [],
        }
        if said.thinking:
            message["reasoning_content"] = said.thinking
        if calls:
            message["tool_calls"] = [_called(made, json.dumps(made.arguments)) for made in calls]
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[said.reason]}
        return {
            **_head(call, "chat.completion"),
            "choices": [{**choice, "logprobs": None}],
            "usage": _usage(usage),
        }

    def stream(self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage) -> None:
        wanted = (call.json.get("stream_options") or {}).get("include_usage")
        head = _head(call, "chat.completion.chunk") | ({"usage": None} if wanted else {})

        def send(delta: dict[str, Any], finish: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            call.event({**head, "choices": [choice]})

        send({"role": "assistant", "content": None if calls else "", "refusal": None})
        for piece in pieces(said.thinking):
            send({"reasoning_content": piece})
        for piece in pieces(said.text):
            send({"refusal" if said.reason == "refusal" else "content": piece})
        for index, made in enumerate(calls):
            send({"tool_calls": [{"index": index, **_called(made, "")}]})
            for piece in pieces(json.dumps(made.arguments)):
                send({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        send({}, _FINISH[said.reason])
        if wanted:
            call.event({**head, "choices": [], "usage": _usage(usage)})
        call.event("[DONE]")


def _head(call: Call, kind: str) -> dict[str, Any]:
    ident = "chatcmpl-" + call.headers["x-request-id"].replace("-", "")
    return {"id": ident, "object": kind, "created": 1, "model": call.json["model"] + "-2026"}


def _called(made: ToolCall, arguments: str) -> dict[str, Any]:
    function = {"name": made.name, "arguments": arguments}
    return {"id": made.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [only(part, "type text", "content") for part in content]
    require(all(part["type"] == "text" for part in parts), "only text is possible here")
    return "\n".join(part["text"] for part in parts)


def _assistant(message: Any, where: str) -> Turn:
    only(message, "role content refusal tool_calls reasoning_content", where)
    given = message.get("tool_calls")
    require(given != [], f"{where}.tool_calls: empty array")
    require(given or message.get("content") is not None, f"{where}: neither content nor tool_calls")
    calls: list[ToolCall] = []
    for call in given or []:
        only(call, "id type function", f"{where}.tool_calls")
        function = only(call["function"], "name arguments", f"{where}.tool_calls.function")
        require(0 < len(call["id"]) <= 40, f"{where}.tool_calls.id: string too long")
        require(isinstance(function["arguments"], str), f"{where}: arguments must be a string")
        calls.append(ToolCall(call["id"], function["name"], json.loads(function["arguments"])))
    return Turn("assistant", _text(message.get("content") or ""), calls=tuple(calls))


def _user(message: Any, where: str) -> Turn:
    if message.get("role") == "tool":
        only(message, "role content tool_call_id", where)
        return Turn("user", results=((message["tool_call_id"], _text(message["content"])),))
    only(message, "role content", where)
    require(message["role"] == "user", f"{where}.role: invalid value {message['role']!r}")
    if isinstance(message["content"], str):
        return Turn("user", message["content"])
    texts = [part["text"] for part in message["content"] if part["type"] == "text"]
    images: list[tuple[str, int]] = []
    for part in message["content"]:
        if part["type"] != "text":
            url = only(part, "type image_url", where)["image_url"]
            data = _IMAGE.fullmatch(only(url, "url detail", where)["url"])
            require(data is not None, f"{where}: invalid image")
            if data is not None:
                images.append(image_of(data[1], base64.b64decode(data[2], validate=True)))
    return Turn("user", "\n".join(texts), tuple(images))


def _tools(body: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Names of the tools, and the choice."""
    given = body.get("tools")
    require(given != [], "tools: empty array")
    if given is None:
        require("tool_choice" not in body, "tool_choice without tools")
        require("parallel_tool_calls" not in body, "parallel_tool_calls without tools")
        return (), "auto"
    names: list[str] = []
    for tool in given:
        function = only(only(tool, "type function", "tools")["function"], _FUNCTION, "tools")
        require(tool["type"] == "function", "tools.type")
        require(_NAME.fullmatch(function["name"]), "tools.function.name")
        require(function.get("parameters", {}).get("type") == "object", "tools.parameters")
        if function.get("strict"):
            _check_strict(function["parameters"])
        names.append(function["name"])
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        choice = only(choice, "type function", "tool_choice")["function"]["name"]
        require(choice in names, f"tool_choice: no tool {choice}")
    else:
        require(choice in ("none", "auto", "required"), f"tool_choice: {choice}")
    return tuple(names), choice


_FUNCTION = "name description parameters strict"


def _schema(form: Any) -> dict[str, Any] | None:
    if form is None or form["type"] == "text":
        return None
    require(form["type"] == "json_schema", f"response_format: {form['type']}")
    inner = only(form["json_schema"], "name schema strict description", "response_format")
    require(_NAME.fullmatch(inner.get("name") or ""), "response_format.json_schema.name")
    schema: dict[str, Any] = inner["schema"]
    if inner.get("strict"):
        _check_strict(schema)
    return schema


def _check_strict(schema: dict[str, Any]) -> None:
    require(schema.get("additionalProperties") is False, "strict: additionalProperties")
    require(set(schema["required"]) == set(schema["properties"]), "strict: required")
