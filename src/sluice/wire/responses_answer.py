"""A chat answer as an answer of the Responses format: the whole object, and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from sluice.wire.answer import UNREADABLE
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.objects import mended
from sluice.wire.responses_items import Item, item_id, seal
from sluice.wire.responses_tools import Called, custom_input
from sluice.wire.usage import estimate_tokens

Part = dict[str, Any]

#: Codes that clients act on. Any other is the gateway's own, and told by the error event only:
#: the format has a closed list of what may stand in a response.
_TOLD_CODES = frozenset(
    {
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_prompt",
        "rate_limit_exceeded",
        "server_is_overloaded",
        "slow_down",
    }
)

_ABORTED = ErrorDetail("the upstream gave the request up", code="upstream_aborted")

#: Why an answer is incomplete, by chat's `finish_reason`.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Echo:
    """What an answer has to know of its request.

    Attributes:
        members: members of the response object that repeat the request's.
        called: what the functions offered in chat stand for.
        seal_reasoning: the client wants reasoning in a form that it can send back.
        summarise: the client wants reasoning as a summary; otherwise it is reasoning text.
        prompt_characters: length of the prompt in chat, to estimate usage that isn't reported.
    """

    members: Mapping[str, Any] = field(default_factory=dict)
    called: Mapping[str, Called] = field(default_factory=dict)
    seal_reasoning: bool = False
    summarise: bool = False
    prompt_characters: int = 0


class Ending(NamedTuple):
    """How an answer ended: a status, and why it is incomplete if it is."""

    status: str
    reason: str | None = None

    @property
    def incomplete(self) -> bool:
        """The answer was cut."""
        return self.reason is not None


def ending(finish_reason: str | None) -> Ending:
    """How an answer ended, by chat's `finish_reason`."""
    reason = _INCOMPLETE.get(finish_reason or "")
    return Ending("completed" if reason is None else "incomplete", reason)


class Function(msgspec.Struct):
    """The function of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A tool call, or a piece of one."""

    id: str | None = None
    index: int | None = None
    function: Function | None = None


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    """`usage.completion_tokens_details`."""

    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    """Chat's `usage`, as far as clients are told of it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Logprobs(msgspec.Struct):
    """`choices[].logprobs`."""

    content: list[dict[str, Any]] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: ChatUsage | None = None
    service_tier: str | None = None


_completions = msgspec.json.Decoder(_Completion)


def to_response(
    chat_body: bytes, echo: Echo, response_id: str, created: int, model: str
) -> dict[str, Any] | ErrorDetail:
    """A whole chat answer as a response object.

    Args:
        chat_body: a chat completion.
        echo: from the request's translation.
        response_id: ours.
        created: seconds since the epoch.
        model: the name that the client asked for.

    Returns:
        The object, or what is wrong with the chat answer.
    """
    try:
        chat = mended(_completions, chat_body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return read_error(chat_body) or UNREADABLE
    choice = next((choice for choice in chat.choices if choice.index == 0), None)
    if choice is None:
        return UNREADABLE
    if choice.finish_reason == "abort":
        return _ABORTED
    end = ending(choice.finish_reason)
    output = _output(choice, end, echo, response_id)
    generated = sum(map(len, _texts(choice.message)))
    return response_object(
        echo,
        Head(response_id, created, model, chat.service_tier),
        output,
        end,
        usage_object(chat.usage, echo.prompt_characters, generated),
    )


def _texts(message: _Message) -> list[str]:
    functions = [call.function or Function() for call in message.tool_calls or []]
    return [
        message.content or "",
        message.refusal or "",
        message.reasoning_content or message.reasoning or "",
        *((function.name or "") + (function.arguments or "") for function in functions),
    ]


def _output(choice: _Choice, end: Ending, echo: Echo, response_id: str) -> list[Item]:
    """Reasoning, a message, calls; an answer without any is a message without text."""
    message, output = choice.message, []
    calls = message.tool_calls or []
    reasoning = message.reasoning_content or message.reasoning or ""
    blocks = message.thinking_blocks or []
    if reasoning or blocks:
        own = item_id("reasoning", response_id, 0)
        output.append(reasoning_item(own, reasoning, blocks, echo))
    parts = _parts(message, choice.logprobs)
    if parts or needs_message(bool(output), bool(calls), end):
        own = item_id("message", response_id, len(output))
        output.append(message_item(own, parts or [text_part("")]))
    ids: set[str] = set()
    for call in calls:
        place = len(output)
        call_id = unique_call_id(call.id, ids, response_id, place)
        function = call.function or Function()
        spoken = Spoken(call_id, function.name or "", function.arguments or "")
        output.append(call_item(spoken, echo, response_id, place, end))
    if end.incomplete:
        output[-1]["status"] = end.status
    return output


def _parts(message: _Message, logprobs: Logprobs | None) -> list[Part]:
    parts = []
    if message.content:
        told = (logprobs.content if logprobs is not None else None) or []
        parts.append(text_part(message.content, told))
    if message.refusal:
        parts.append(refusal_part(message.refusal))
    return parts


def needs_message(reasoned: bool, called: bool, end: Ending) -> bool:
    """Whether an answer without text still gets a message, so that clients find one: not where
    calls are the answer, nor where it was cut while it reasoned."""
    return not called and not (reasoned and end.incomplete)


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Part:
    """A text of a message."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": [*map(token_logprob, logprobs)],
    }


def token_logprob(token: Mapping[str, Any]) -> dict[str, Any]:
    """A token's probability; what chat may leave null is a list here."""
    top = token.get("top_logprobs")
    others = [other for other in top if isinstance(other, dict)] if isinstance(top, list) else []
    return {
        **token,
        "bytes": token.get("bytes") or [],
        "top_logprobs": [{**other, "bytes": other.get("bytes") or []} for other in others],
    }


def refusal_part(text: str) -> Part:
    """A refusal in a message."""
    return {"type": "refusal", "refusal": text}


def message_item(own: str, parts: list[Part], status: str = "completed") -> Item:
    """A message of the assistant."""
    return {"type": "message", "id": own, "role": "assistant", "status": status, "content": parts}


def reasoning_item(
    own: str, text: str, blocks: list[Any], echo: Echo, status: str = "completed"
) -> Item:
    """Reasoning. It is sealed where the client asks for that, or where its plain form wouldn't
    come back whole: signed blocks, a summary."""
    item: Item = {"type": "reasoning", "id": own, "summary": [], "status": status}
    if echo.summarise:
        item["summary"] = [{"type": "summary_text", "text": text}] if text else []
    else:
        item["content"] = [{"type": "reasoning_text", "text": text}] if text else []
    if (text or blocks) and (echo.seal_reasoning or blocks or echo.summarise):
        item["encrypted_content"] = seal(text, blocks)
    return item


class Spoken(NamedTuple):
    """A call as the model made it, under the name that chat has."""

    call_id: str
    name: str
    arguments: str


def call_item(spoken: Spoken, echo: Echo, response_id: str, place: int, end: Ending) -> Item:
    """A finished call."""
    called = echo.called.get(spoken.name, Called(spoken.name))
    item = empty_call_item(spoken, called, response_id, place)
    item["status"] = "completed"
    if called.custom:
        item["input"] = custom_input(spoken.arguments)
    else:
        # Some models call a function without parameters with no text at all; that is no JSON.
        item["arguments"] = spoken.arguments or ("" if end.incomplete else "{}")
    return item


def empty_call_item(spoken: Spoken, called: Called, response_id: str, place: int) -> Item:
    """A call that has just begun."""
    kind, text = ("custom_tool_call", "input") if called.custom else ("function_call", "arguments")
    item: Item = {
        "type": kind,
        "id": item_id(kind, response_id, place),
        "call_id": spoken.call_id,
        "name": called.name,
        text: "",
        "status": "in_progress",
    }
    if called.namespace is not None:
        item["namespace"] = called.namespace
    return item


def unique_call_id(found: str | None, taken: set[str], response_id: str, place: int) -> str:
    """The call's id; one of ours where it has none or one that another call has. It is added to
    the taken ones."""
    call_id = found if found and found not in taken else item_id("call", response_id, place)
    taken.add(call_id)
    return call_id


class Head(NamedTuple):
    """What names a response."""

    id: str
    created: int
    model: str
    service_tier: str | None = None


def response_object(
    echo: Echo,
    head: Head,
    output: list[Item],
    end: Ending,
    usage: dict[str, Any] | None,
    error: ErrorDetail | None = None,
) -> dict[str, Any]:
    """A response object."""
    response = {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": end.status,
        "error": None if error is None else error_object(error),
        "incomplete_details": {"reason": end.reason} if end.incomplete else None,
        **echo.members,
        "model": head.model,
        "output": output,
        "usage": usage,
    }
    if head.service_tier is not None:
        response["service_tier"] = head.service_tier
    return response


def error_object(detail: ErrorDetail) -> dict[str, Any]:
    """The error of a response that failed."""
    code = detail.code if detail.code in _TOLD_CODES else "server_error"
    return {"code": code, "message": detail.message}


def usage_object(usage: ChatUsage | None, prompt_characters: int, generated: int) -> dict[str, Any]:
    """Usage in the Responses format; estimated where the upstream reports none, since clients
    insist on one.

    Args:
        usage: chat's.
        prompt_characters: length of the prompt.
        generated: characters generated.
    """
    if usage is None:
        usage = ChatUsage(estimate_tokens(prompt_characters), estimate_tokens(generated))
    cached = usage.prompt_tokens_details or PromptDetails()
    reasoned = usage.completion_tokens_details or CompletionDetails()
    given, made = max(usage.prompt_tokens or 0, 0), max(usage.completion_tokens or 0, 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": max(cached.cached_tokens or 0, 0),
            "cache_write_tokens": max(
                cached.cache_write_tokens or cached.created_cache_tokens or 0, 0
            ),
        },
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": max(reasoned.reasoning_tokens or 0, 0)},
        "total_tokens": given + made,
    }
