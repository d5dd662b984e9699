"""An Anthropic upstream's whole answer as a chat completion, and what both directions need.

A `NameMap` is drawn from the request (see `anthropic_request`) and undoes in the answer what the
request did to tool names. Ids of tool calls need no such map: Anthropic invents them, clients
return them, and only those that another provider made are rewritten on their way up.
`closed_schema` is the form in which Anthropic can promise an answer, `attachment` the one in which
it takes files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluice.wire.answer import UNREADABLE, Answer
from sluice.wire.errors import ErrorDetail, InvalidRequest
from sluice.wire.messages_passthrough import AnthropicUsage, Block, StopDetails, anthropic_error
from sluice.wire.objects import MalformedJSON, decode_object, encode, mended
from sluice.wire.usage import Usage, estimate_tokens

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class NameMap:
    """What an answer needs to know of its request to be put in the client's words.

    Attributes:
        client_names: by the tool's name upstream, the client's; only those that differ.
        legacy: the client speaks of functions (`functions`, `function_call`), not of tools.
    """

    client_names: Mapping[str, str] = field(default_factory=dict)
    legacy: bool = False

    def client_name(self, name: str) -> str:
        """The client's name of a tool that the upstream called."""
        return self.client_names.get(name, name)


def upstream_name(name: str) -> str:
    """A tool's name as Anthropic takes it: itself, or else made of its letters and a digest."""
    if _NAME.fullmatch(name):
        return name
    return f"{_FOREIGN.sub('_', name)[:55]}_{_digest(name)[:8]}"


def upstream_id(tool_call_id: str) -> str:
    """A tool call's id as Anthropic takes it. The same on every turn, so that caches hold."""
    return tool_call_id if _ID.fullmatch(tool_call_id) else f"call_{_digest(tool_call_id)[:24]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def chat_usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    """The `usage` object of a chat answer."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    # Only server tools pause a turn, and none are asked for; whatever it was, it isn't all there.
    "pause_turn": "length",
}


def finish_reason(stop_reason: str, called: bool, legacy: bool) -> str:
    """The chat answer's `finish_reason`.

    Args:
        stop_reason: Anthropic's; one that isn't known counts as an ordinary stop.
        called: the answer calls a tool.
        legacy: the client speaks of functions.
    """
    reason = _FINISH.get(stop_reason, "stop")
    if reason == "stop" and called:
        reason = "tool_calls"
    return "function_call" if legacy and reason == "tool_calls" else reason


def refusal_text(details: StopDetails | None) -> str:
    """What a chat client reads in place of a refused answer."""
    explanation = details.explanation if details is not None else None
    return explanation or "The model declined to answer this request."


class Message(msgspec.Struct):
    """What is read of a message; blocks of thinking are passed on as they came."""

    id: str = ""
    type: str = ""
    content: list[msgspec.Raw] = []
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: AnthropicUsage | None = None


_messages = msgspec.json.Decoder(Message)
_decode_block = msgspec.json.Decoder(Block).decode


def completion_id(message_id: str) -> str:
    """The chat answer's id, made of the message's."""
    return "chatcmpl-" + message_id.removeprefix("msg_")


def chat_tier(tier: str | None) -> str | None:
    """The chat answer's `service_tier`; None where it has no counterpart."""
    return {"standard": "default", "priority": "priority"}.get(tier or "")


def read_message(
    body: bytes, model: str, names: NameMap, prompt_characters: int, created: int
) -> Answer | ErrorDetail:
    """Read an Anthropic upstream's 200 answer as a chat completion.

    Args:
        body: as it came.
        model: the name that the client asked for.
        names: of the request.
        prompt_characters: length of the prompt, for an estimate where usage is missing.
        created: the answer's date (Anthropic gives none), in Unix seconds.

    Returns:
        The answer for the client, or what is wrong with it.
    """
    try:
        decode_object(body)  # names what isn't UTF-8
        message = mended(_messages, body)
        if message.type != "message" or message.stop_reason is None:
            return read_anthropic_error(body) or UNREADABLE
        blocks = [(_decode_block(part), part) for part in message.content]
    except (MalformedJSON, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return UNREADABLE
    reported = message.usage or AnthropicUsage()
    usage = reported.usage()
    if message.usage is None:
        generated = estimate_tokens(sum(len(bytes(part)) for part in message.content))
        prompt = estimate_tokens(prompt_characters)
        usage = Usage(prompt, output_tokens=generated, estimated=True)
    chat = _chat_message(message, blocks, names)
    called = "tool_calls" in chat or "function_call" in chat
    choice = {
        "index": 0,
        "message": chat,
        "logprobs": None,
        "finish_reason": finish_reason(message.stop_reason, called, names.legacy),
    }
    answer: dict[str, Any] = {
        "id": completion_id(message.id),
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": chat_usage(usage, reported.thinking_tokens),
    }
    if (tier := chat_tier(reported.service_tier)) is not None:
        answer["service_tier"] = tier
    return Answer(encode(answer), usage)


def _chat_message(
    message: Message, blocks: list[tuple[Block, msgspec.Raw]], names: NameMap
) -> dict[str, Any]:
    """The assistant's message. What a refusal leaves half said is not shown."""
    if message.stop_reason == "refusal":
        refusal = refusal_text(message.stop_details)
        return {"role": "assistant", "content": None, "refusal": refusal}
    calls = [_tool_call(block, names) for block, _ in blocks if block.type == "tool_use"]
    text = "".join(block.text or "" for block, _ in blocks if block.type == "text")
    chat: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not text else text,
        "refusal": None,
    }
    if reasoning := "".join(b.thinking or "" for b, _ in blocks if b.type == "thinking"):
        chat["reasoning_content"] = reasoning
    if thinking := [part for block, part in blocks if returns_thinking(block)]:
        chat["thinking_blocks"] = thinking
    if calls and names.legacy:
        chat["function_call"] = calls[0]["function"]
    elif calls:
        chat["tool_calls"] = calls
    return chat


def returns_thinking(block: Block) -> bool:
    """Whether the client must return this block on its next turn. A signature stands for
    thinking that isn't shown; a block with neither is nothing."""
    return block.type == "redacted_thinking" or (
        block.type == "thinking" and bool(block.thinking or block.signature)
    )


def _tool_call(block: Block, names: NameMap) -> dict[str, Any]:
    arguments = bytes(block.input).decode()
    function = {
        "name": names.client_name(block.name or ""),
        "arguments": "{}" if arguments == "null" else arguments,
    }
    return {"id": block.id or "", "type": "function", "function": function}


_OVERFLOW = re.compile(
    r"prompt is too long|exceeds? (the )?(model's )?context (limit|window|length)", re.IGNORECASE
)

#: By Anthropic's error type: ours, and the code.
_ERRORS: Mapping[str, tuple[str, str | None]] = {
    "invalid_request_error": ("invalid_request_error", None),
    "not_found_error": ("invalid_request_error", "model_not_found"),
    "conflict_error": ("invalid_request_error", None),
    "request_too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit_error": ("rate_limit_error", "rate_limit_exceeded"),
    "timeout_error": ("server_error", "upstream_timeout"),
    "overloaded_error": ("overloaded_error", "server_is_overloaded"),
    # The credential is the gateway's, never the caller's.
    "authentication_error": ("server_error", "upstream_credential_refused"),
    "billing_error": ("server_error", "upstream_credential_refused"),
    "permission_error": ("server_error", "upstream_credential_refused"),
}


def read_anthropic_error(body: bytes) -> ErrorDetail | None:
    """The error that an Anthropic body or event carries, in OpenAI's terms; None if none."""
    detail = anthropic_error(body)
    if detail is None:
        return None
    kind, code = _ERRORS.get(detail.type, ("server_error", None))
    if detail.type == "invalid_request_error" and _OVERFLOW.search(detail.message):
        code = "context_length_exceeded"
    return ErrorDetail(detail.message, kind, code=code)


_DATA_URI = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF": "application/pdf",
}


def attachment(data: str, param: str, title: str | None = None) -> dict[str, Any]:
    """A data URI, or bare base64, as a block: an image, a PDF document or a text document.

    What it is is read off its first bytes, because labels are often wrong.

    Raises:
        InvalidRequest: it is none of these, or not base64; names the part.
    """
    labelled = _DATA_URI.fullmatch(data)
    label, payload = labelled.groups() if labelled else ("", data)
    payload = "".join(payload.split())
    try:
        content = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"`{param}` is not valid base64 data", param) from None
    kind = _kind(content) or label.lower().replace("image/jpg", "image/jpeg")
    if kind in _IMAGES:
        return {"type": "image", "source": _base64(kind, payload)}
    if kind == "application/pdf":
        block = {"type": "document", "source": _base64(kind, payload)}
    else:
        block = {"type": "document", "source": _text_source(content, param)}
    return block | ({"title": title} if title else {})


def _kind(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if content.startswith(magic)), None)


def _base64(media_type: str, payload: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": payload}


def _text_source(content: bytes, param: str) -> dict[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        raise InvalidRequest(
            f"`{param}` holds neither text, nor a PDF, nor an image that this model reads", param
        )
    return {"type": "text", "media_type": "text/plain", "data": text}


#: Schema keywords that Anthropic enforces, those with schemas inside apart.
_ENFORCED = frozenset(("$ref", "const", "description", "enum", "required", "title", "type"))
_MAPS = frozenset(("$defs", "definitions", "properties"))
_VARIANTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
_IGNORED = frozenset(("$id", "$schema", "additionalProperties"))

#: These change which objects and arrays are valid; to weaken them would break a promise.
# fmt: off
_UNPROMISED = frozenset((
    "$dynamicRef", "contains", "dependentRequired", "dependentSchemas", "else", "if", "not",
    "patternProperties", "prefixItems", "then", "unevaluatedItems", "unevaluatedProperties"
))
# fmt: on


def closed_schema(schema: Any, param: str) -> dict[str, Any]:
    """A JSON schema in the form that Anthropic enforces.

    Objects are closed (`additionalProperties: false`); `oneOf` becomes `anyOf`; limits (numbers,
    lengths, patterns) and other keywords that aren't enforced go into the description.

    Raises:
        InvalidRequest: it is recursive, refers elsewhere, has open-ended maps, or uses a keyword
            that is neither enforced nor a mere limit.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{param}` must be an object", param)
    _check_references(schema, param)
    closed: dict[str, Any] = _closed(schema, param)
    return closed


def _closed(schema: Any, param: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    hints: list[str] = []
    for key, value in schema.items():
        if key in _UNPROMISED or (key == "additionalProperties" and isinstance(value, dict)):
            raise InvalidRequest(
                f"this model can't be held to `{key}` in a schema", param, "unsupported_parameter"
            )
        if key in _MAPS and isinstance(value, dict):
            out[key] = {name: _closed(inner, param) for name, inner in value.items()}
        elif key in _VARIANTS and isinstance(value, list):
            out[_VARIANTS[key]] = [_closed(inner, param) for inner in value]
        elif key == "items":
            out[key] = _closed(value, param)
        elif key in _ENFORCED or _enforced_value(key, value):
            out[key] = value
        elif key not in _IGNORED:
            hints.append(f"{key}: {encode(value).decode()}")
    if out.get("type") == "object" or "properties" in out:
        out["additionalProperties"] = False
    if hints:
        described = [out["description"]] if isinstance(out.get("description"), str) else []
        out["description"] = "\n\n".join([*described, "{" + ", ".join(hints) + "}"])
    return out


def _enforced_value(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value in _FORMATS
    return key == "minItems" and value in (0, 1)


def _check_references(schema: dict[str, Any], param: str) -> None:
    """Every reference is to a definition, and following them ends."""
    definitions = {
        f"#/{group}/{name}": set(_references(inner))
        for group in ("$defs", "definitions")
        if isinstance(schema.get(group), dict)
        for name, inner in schema[group].items()
    }
    ended: set[str] = set()
    while more := {name for name, to in definitions.items() if to <= ended} - ended:
        ended |= more
    if len(ended) < len(definitions) or not set(_references(schema)) <= ended:
        raise InvalidRequest(
            "this model takes no recursive schema, and references to `$defs` only",
            param,
            "unsupported_parameter",
        )


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _references(inner)
