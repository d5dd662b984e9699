"""A complete chat answer as a message of Anthropic's Messages API.

Here too is what the streamed form shares with it: ids, stop reasons, usage.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import uuid_utils

from sluice.wire.objects import MalformedJSON, encode, mended
from sluice.wire.tool_ids import toolu_id
from sluice.wire.usage import UsageBody, estimate_tokens

#: Signature of thinking blocks that were made from a chat upstream's reasoning. It vouches for
#: nothing; it says that Anthropic never signed the block, and must not be asked to check it.
OWN_SIGNATURE = "c2x1aWNl"

#: Where a model's arguments are no JSON object, the text goes to the client under this name, as
#: Anthropic's documentation advises: no tool accepts it, and the model sees what it wrote.
INVALID_JSON = "INVALID_JSON"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def message_id(chat_id: str | None) -> str:
    """The message's id, made from the chat answer's."""
    name = _UNSAFE.sub("-", (chat_id or "").removeprefix("chatcmpl-"))
    if not name:
        name = uuid_utils.uuid7().hex
    return name if name.startswith("msg_") else f"msg_{name}"


class Function(msgspec.Struct):
    """`tool_calls[].function`, whole or a delta; some upstreams send arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    def text(self) -> str:
        """The arguments' JSON text, or a piece of it."""
        if isinstance(self.arguments, dict):
            return encode(self.arguments).decode()
        return self.arguments or ""


class ToolCall(msgspec.Struct):
    """One of `tool_calls`, whole or a delta."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class CompletionDetails(msgspec.Struct):
    """`usage.completion_tokens_details`."""

    reasoning_tokens: int | None = None


class ChatUsage(UsageBody):
    """The `usage` object of chat, with what Anthropic's has a place for."""

    completion_tokens_details: CompletionDetails | None = None


class ChatMessage(msgspec.Struct):
    """`choices[].message`."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """One of a chat answer's choices; `stop_reason` is vLLM's: a stop string, or a token."""

    message: ChatMessage
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatAnswer(msgspec.Struct):
    """What is read of a chat answer."""

    choices: list[Choice]
    id: str | None = None
    usage: ChatUsage | None = None
    service_tier: str | None = None


_answers = msgspec.json.Decoder(ChatAnswer)
_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])


def to_message(chat_body: bytes, model: str, prompt_characters: int = 0) -> bytes:
    """Translate a chat answer.

    Args:
        chat_body: the answer, an error under a 200 already ruled out.
        model: the name that the client asked for.
        prompt_characters: length of the prompt, for an estimate where usage is missing.

    Raises:
        MalformedJSON: the body is no chat answer.
    """
    try:
        answer = mended(_answers, chat_body)
        if not answer.choices:
            raise MalformedJSON("the answer holds no choice")
        choice = answer.choices[0]
        blocks = _blocks(choice.message, answer.id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedJSON(str(error)) from None
    stop = stop_of(
        choice.finish_reason,
        choice.stop_reason,
        complete_tool=bool(choice.message.tool_calls),
        refusal=choice.message.refusal,
    )
    if answer.usage is None:
        usage = estimated_usage(prompt_characters, len(encode(blocks)))
    else:
        usage = message_usage(answer.usage)
    return encode(
        {
            "id": message_id(answer.id),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            **stop.members(),
            "usage": {**usage, "service_tier": _TIERS.get(answer.service_tier or "")},
        }
    )


def _blocks(message: ChatMessage, answer_id: str | None) -> list[dict[str, Any]]:
    """The content: reasoning, text, calls. Blank text beside something else is left out, because
    Anthropic refuses it when it comes back; an empty answer is one empty text, because clients
    look at the first block."""
    blocks: list[dict[str, Any]] = []
    thinking = message.reasoning or message.reasoning_content or ""
    if thinking.strip():
        blocks.append({"type": "thinking", "thinking": thinking, "signature": OWN_SIGNATURE})
    calls = message.tool_calls or []
    text = (message.content or "") + (message.refusal or "")
    if text.strip() or not (blocks or calls):
        blocks.append({"type": "text", "text": text})
    for position, call in enumerate(calls):
        function = call.function or Function()
        blocks.append(
            {
                "type": "tool_use",
                "id": toolu_id(call.id or own_call_id(answer_id, position)),
                "name": function.name or "",
                "input": _input(function.text()),
            }
        )
    return blocks


def own_call_id(answer_id: str | None, position: int) -> str:
    """An id for a tool call that came without one."""
    return f"{message_id(answer_id).removeprefix('msg_')}-{position}"


def is_object(text: str) -> bool:
    """The text is a whole JSON object."""
    try:
        _arguments.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _input(arguments: str) -> msgspec.Raw | dict[str, Any]:
    if is_object(arguments):
        return msgspec.Raw(arguments.encode())
    if arguments.strip() in ("", "null"):
        return {}
    return {INVALID_JSON: arguments}


class Stop(NamedTuple):
    """Why an answer ended, as Anthropic has it."""

    reason: str
    sequence: str | None = None
    explanation: str | None = None

    def members(self) -> dict[str, Any]:
        """Those of a message, or of `message_delta`'s delta."""
        details = None
        if self.reason == "refusal":
            details = {"type": "refusal", "category": None, "explanation": self.explanation}
        return {
            "stop_reason": self.reason,
            "stop_sequence": self.sequence,
            "stop_details": details,
        }


def stop_of(
    finish_reason: str | None,
    stop_reason: int | str | None,
    *,
    complete_tool: bool,
    refusal: str | None = None,
) -> Stop:
    """Why an answer ended.

    Args:
        finish_reason: chat's reason. With a named tool choice upstreams say `stop`.
        stop_reason: vLLM's: the stop string, or a token id, that ended the answer.
        complete_tool: a tool was called, and the last call is whole.
        refusal: OpenAI's refusal text.
    """
    if finish_reason == "length":
        return Stop("max_tokens")
    if finish_reason == "content_filter" or refusal:
        return Stop("refusal", explanation=refusal or None)
    if complete_tool:
        return Stop("tool_use")
    if isinstance(stop_reason, str):
        return Stop("stop_sequence", stop_reason)
    return Stop("end_turn")


#: `service_tier` of chat answers, as far as Anthropic has the same.
_TIERS = {"default": "standard", "priority": "priority"}


def message_usage(body: ChatUsage) -> dict[str, Any]:
    """Anthropic's usage: its input tokens are those that no cache held or took."""
    usage = body.usage()
    cached, written = usage.cached_input_tokens, usage.cache_write_tokens
    counts: dict[str, Any] = {
        "input_tokens": max(usage.input_tokens - cached - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.output_tokens,
    }
    details = body.completion_tokens_details
    if details is not None and details.reasoning_tokens is not None:
        thinking = min(max(details.reasoning_tokens, 0), usage.output_tokens)
        counts["output_tokens_details"] = {"thinking_tokens": thinking}
    return counts


def estimated_usage(prompt_characters: int, characters: int) -> dict[str, Any]:
    """The same where the upstream reports nothing."""
    return message_usage(
        ChatUsage(
            prompt_tokens=estimate_tokens(prompt_characters),
            completion_tokens=estimate_tokens(characters),
        )
    )
