"""The model server's Anthropic door: Messages, as a model takes them that thinks by itself."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any, Literal

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

KEY = "anthropic-provider-key"

_MEMBERS = (
    "model messages max_tokens system stop_sequences stream tools tool_choice thinking"
    " output_config metadata service_tier"
)
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REASONS = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "tools": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
}
_TYPES = {400: "invalid_request_error", 401: "authentication_error"}


def signature(thinking: str) -> str:
    """What proves that this server thought so."""
    digest = hashlib.sha256(f"only the server knows: {thinking}".encode()).digest()
    return base64.b64encode(digest).decode()


class AnthropicMouth(ModelServer):
    """Reads and writes messages."""

    def read(self, call: Call) -> Conversation:
        if call.headers.get("x-api-key") != KEY or "authorization" in call.headers:
            raise Refused("invalid x-api-key", status=401)
        require(call.path.partition("?")[0] == "/v1/messages", f"not found: {call.path}")
        version = call.headers.get("anthropic-version")
        require(version in ("2023-06-01", "2026-10-21"), f"anthropic-version: {version}")
        body = only(call.json, _MEMBERS, "request")
        require(isinstance(body.get("max_tokens"), int), "max_tokens: field required")
        require(body["max_tokens"] >= 1, "max_tokens: must be positive")
        stops = body.get("stop_sequences") or []
        require(all(stop.strip() for stop in stops), "stop_sequences: must hold non-whitespace")
        turns, returned = self._turns(body.get("messages") or [])
        tools = _tools(body.get("tools") or [])
        called = any(turn.calls for turn in turns)
        require(tools or not called, "requests with tool_use blocks must define tools")
        choice, parallel = _choice(body.get("tool_choice"), tools)
        return Conversation(
            _system(body.get("system")),
            tuple(turns),
            body["max_tokens"],
            tools,
            choice,
            parallel,
            _schema(body.get("output_config") or {}),
            tuple(stops),
            self._thinks(body, turns, returned),
        )

    def _thinks(self, body: dict[str, Any], turns: list[Turn], returned: bool) -> bool:
        """Thinking is on and shown. In a tool loop it goes off where it was not returned."""
        given = only(body.get("thinking") or {"type": "adaptive"}, "type display", "thinking")
        require(given["type"] in ("adaptive", "disabled"), f"thinking: {given['type']}")
        on = given["type"] == "adaptive" and given.get("display") == "summarized"
        return on and (returned or not turns[-1].results)

    def _turns(self, messages: list[Any]) -> tuple[list[Turn], bool]:
        """The turns, and whether the last of the model's own begins with its thinking."""
        require(messages, "messages: at least one message is required")
        turns: list[Turn] = []
        returned = False
        for place, message in enumerate(messages):
            where = f"messages.{place}"
            role = only(message, "role content", where)["role"]
            require(role in ("user", "assistant"), f"{where}.role: unexpected role {role!r}")
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            require(blocks, f"{where}: all messages must have non-empty content")
            turn = Turn(role)
            for number, block in enumerate(blocks):
                turn = self._with_block(turn, block, f"{where}.content.{number}")
            if role == "assistant":
                returned = blocks[0]["type"] == "thinking"
            if turns and turns[-1].role == role:
                turns[-1] = replace(
                    turn,
                    text=(turns[-1].text + " " + turn.text).strip(),
                    images=turns[-1].images + turn.images,
                    calls=turns[-1].calls + turn.calls,
                    results=turns[-1].results + turn.results,
                )
            else:
                turns.append(turn)
        require(turns[0].role == "user", "messages: first message must use the user role")
        require(turns[-1].role == "user", "this model does not support assistant prefill")
        matched_results(turns, "`tool_use` ids without `tool_result` blocks immediately after")
        return turns, returned

    def _with_block(self, turn: Turn, block: Any, where: str) -> Turn:
        kind = block.get("type")
        require(kind in _BLOCKS[turn.role], f"{where}.type: unexpected {kind} in {turn.role}")
        only(block, _BLOCKS[turn.role][kind], where)
        if kind == "text":
            require(block["text"].strip(), f"{where}: text content blocks must be non-empty")
            return replace(turn, text=f"{turn.text}\n{block['text']}".strip())
        if kind == "image":
            source = only(block["source"], "type media_type data", where)
            require(source["type"] == "base64", f"{where}.source.type")
            content = base64.b64decode(source["data"], validate=True)
            return replace(turn, images=(*turn.images, image_of(source["media_type"], content)))
        if kind == "thinking":
            sealed = signature(block["thinking"]) if block["thinking"] else signature("hidden")
            require(block["signature"] == sealed, f"{where}: invalid signature in thinking block")
            require(not (turn.text or turn.calls), f"{where}: thinking must come first")
            self.books.thoughts += 1
            return turn
        if kind == "tool_use":
            require(_ID.fullmatch(block["id"]), f"{where}.id: String should match pattern")
            require(isinstance(block["input"], dict), f"{where}.input: must be an object")
            made = ToolCall(block["id"], block["name"], block["input"])
            return replace(turn, calls=(*turn.calls, made))
        require(not (turn.text or turn.images), f"{where}: tool_result must come first")
        result = (block["tool_use_id"], _result(block.get("content"), where))
        return replace(turn, results=(*turn.results, result))

    def refuse(self, call: Call, refused: Refused) -> None:
        error = {"type": _TYPES[refused.status], "message": str(refused)}
        call.respond(refused.status, {"type": "error", "error": error, "request_id": "req_1"})

    def too_long(self, tokens: int) -> Refused:
        return Refused(f"prompt is too long: {tokens} tokens > {CONTEXT} maximum")

    def call_id(self, number: int, place: int) -> str:
        return f"toolu_01{number:011d}{place:011d}"

    def whole(
        self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage
    ) -> dict[str, Any]:
        return {
            **_head(call),
            "content": _blocks(call, said, calls),
            **_stop(said),
            "usage": {**_input(usage), **_output(usage)},
        }

    def stream(self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage) -> None:
        def send(kind: str, **members: Any) -> None:
            data = json.dumps({"type": kind, **members})
            call.chunk(f"event: {kind}\ndata: {data}\n\n".encode())

        started = {**_input(usage), "output_tokens": 1}
        no_stop = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
        send("message_start", message={**_head(call), "content": [], **no_stop, "usage": started})
        send("ping")
        for index, block in enumerate(_blocks(call, said, calls)):
            empty, deltas = _in_pieces(block)
            send("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                send("content_block_delta", index=index, delta=delta)
            send("content_block_stop", index=index)
        send("message_delta", delta=_stop(said), usage=_output(usage))
        send("message_stop")


#: By role and type, the members of a block.
_BLOCKS: dict[Literal["user", "assistant"], dict[str, str]] = {
    "user": {
        "text": "type text cache_control",
        "image": "type source cache_control",
        "tool_result": "type tool_use_id content is_error cache_control",
    },
    "assistant": {
        "text": "type text citations cache_control",
        "thinking": "type thinking signature",
        "tool_use": "type id name input caller cache_control",
    },
}


def _result(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [only(part, "type text", where) for part in content]
    require(all(part["type"] == "text" for part in parts), f"{where}: only text is known here")
    return "\n".join(part["text"] for part in parts)


def _system(given: Any) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return "\n".join(only(block, "type text cache_control", "system")["text"] for block in given)


def _tools(given: list[Any]) -> tuple[str, ...]:
    for tool in given:
        only(tool, "type name description input_schema strict cache_control", "tools")
        require(_NAME.fullmatch(tool["name"]), "tools.name: String should match pattern")
        schema = tool["input_schema"]
        require(schema.get("type") == "object", "tools.input_schema.type")
        closed = schema.get("additionalProperties") is False
        require(closed or not tool.get("strict"), "tools.strict: additionalProperties")
    return tuple(tool["name"] for tool in given)


def _choice(given: Any, tools: tuple[str, ...]) -> tuple[str, bool]:
    """The choice, and whether several calls are possible."""
    if given is None:
        return "auto", True
    require(tools, "tool_choice may only be specified while providing tools")
    only(given, "type name disable_parallel_tool_use", "tool_choice")
    kinds = {"auto": "auto", "any": "required", "none": "none", "tool": given.get("name")}
    require(given["type"] in kinds, f"tool_choice.type: {given['type']}")
    require(given["type"] != "tool" or given["name"] in tools, "tool_choice.name: no such tool")
    return str(kinds[given["type"]]), not given.get("disable_parallel_tool_use")


def _schema(config: dict[str, Any]) -> dict[str, Any] | None:
    only(config, "effort format", "output_config")
    require(config.get("effort") in (None, "low", "medium", "high", "max"), "output_config.effort")
    if config.get("format") is None:
        return None
    form = only(config["format"], "type schema", "output_config.format")
    require(form["type"] == "json_schema", "output_config.format.type")
    schema: dict[str, Any] = form["schema"]
    require(schema.get("additionalProperties") is False, "schema: additionalProperties")
    return schema


def _head(call: Call) -> dict[str, Any]:
    ident = "msg_" + call.headers["x-request-id"].replace("-", "")
    return {"id": ident, "type": "message", "role": "assistant", "model": call.json["model"]}


def _blocks(call: Call, said: Said, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    """Where thinking is left to the model, it thinks without showing it."""
    blocks: list[dict[str, Any]] = []
    if said.reason == "refusal":
        return blocks
    if said.thinking:
        sealed = signature(said.thinking)
        blocks.append({"type": "thinking", "thinking": said.thinking, "signature": sealed})
    elif "thinking" not in call.json:
        hidden = signature("hidden")
        blocks.append({"type": "thinking", "thinking": "", "signature": hidden})
    if said.text:
        blocks.append({"type": "text", "text": said.text, "citations": None})
    for made in calls:
        block = {"type": "tool_use", "id": made.id, "name": made.name, "input": made.arguments}
        blocks.append({**block, "caller": {"type": "direct"}})
    return blocks


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and its deltas; no arguments have none."""
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        return {**block, "text": ""}, deltas
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])
        ]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    arguments = json.dumps(block["input"]) if block["input"] else ""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments)]
    return {**block, "input": {}}, deltas


def _stop(said: Said) -> dict[str, Any]:
    details = None
    if said.reason == "refusal":
        details = {"type": "refusal", "category": None, "explanation": said.text}
    return {
        "stop_reason": _REASONS[said.reason],
        "stop_sequence": said.stopped_by,
        "stop_details": details,
    }


def _input(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }


def _output(usage: Usage) -> dict[str, Any]:
    details = {"thinking_tokens": usage.reasoning}
    return {"output_tokens": usage.output, "output_tokens_details": details}
