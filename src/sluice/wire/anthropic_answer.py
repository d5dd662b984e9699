"""An Anthropic upstream's whole answer as a chat completion, and what both directions need.

A `NameMap` is drawn from the request (see `anthropic_request`) and undoes in the answer what the
request did to tool names. Ids of tool calls need no such map: Anthropic invents them, clients
return them, and only those that another provider made are rewritten on their way up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluice.wire.answer import UNREADABLE, Answer
from sluice.wire.errors import ErrorDetail
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
    """

    client_names: Mapping[str, str] = field(default_factory=dict)

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


def finish_reason(stop_reason: str, called: bool) -> str:
    """The chat answer's `finish_reason`.

    Args:
        stop_reason: Anthropic's; one that isn't known counts as an ordinary stop.
        called: the answer calls a tool.
    """
    reason = _FINISH.get(stop_reason, "stop")
    return "tool_calls" if reason == "stop" and called else reason


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
    choice = {
        "index": 0,
        "message": chat,
        "logprobs": None,
        "finish_reason": finish_reason(message.stop_reason, "tool_calls" in chat),
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
    if calls:
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
