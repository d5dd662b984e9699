"""Requests of the Responses format: read, and turned into chat for upstreams that have only that.

What a Responses request can ask for and chat can't give is either left out, where the answer
stays what the client asked for (and what was left out is named to it), or refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import uuid_utils

from sluice.wire.errors import InvalidRequest
from sluice.wire.inline_data import read_prompt
from sluice.wire.objects import RawObject, mended, raw
from sluice.wire.request import Request, StreamOptions, member, read_request
from sluice.wire.responses_answer import Echo
from sluice.wire.responses_chat import ChatHistory
from sluice.wire.responses_items import Item, item_id
from sluice.wire.responses_tools import Offer, Toolbox, offer, read_tools

_NONE: Mapping[str, Item] = MappingProxyType({})

#: Members with the same name and meaning in chat.
_COPIED = (
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
    "user",
)

#: Members that only an upstream with Responses can serve, and that change what comes back.
_UNSERVED = ("background", "conversation", "moderation", "prompt")

#: What a response object says where the request said nothing.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
)

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"

_anything = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class ChatEquivalent:
    """A Responses request as chat.

    Attributes:
        request: the chat request.
        dropped_tools: types of offered tools that the upstream can't have, each once.
        echo: what the answer's translation needs.
    """

    request: Request
    dropped_tools: tuple[str, ...]
    echo: Echo


def read_responses_request(body: bytes) -> Request:
    """Read a Responses body.

    Raises:
        InvalidRequest: with the parameter named.
    """
    request = read_request(body, "input")
    members = request.members
    limit = member(members, "max_output_tokens", int)
    if limit is not None and limit < 1:
        raise InvalidRequest("`max_output_tokens` must be at least 1", "max_output_tokens")
    instructions = member(members, "instructions", str) or ""
    member(members, "store", bool)
    member(members, "previous_response_id", str)
    items = _given(members)
    if not items and not _continues(members):
        raise InvalidRequest("`input` is required", "input", "missing_required_parameter")
    _references(items)  # each of them once
    return msgspec.structs.replace(
        request,
        max_tokens=limit,
        prompt_characters=request.prompt_characters + len(instructions),
    )


def previous_response(request: Request) -> str | None:
    """The id of the response that a request continues."""
    found: str | None = member(request.members, "previous_response_id", str)
    return found


def stores(request: Request) -> bool:
    """Whether the client lets the response be stored; so it is where it says nothing."""
    return member(request.members, "store", bool) is not False


def references(request: Request) -> tuple[str, ...]:
    """Ids of the stored items that the input refers to; they are to be looked up for `to_chat`
    and `input_items`."""
    return tuple(_references(_given(request.members)))


def _references(items: Iterable[Item]) -> list[str]:
    """Of a request's own items, the ids of those that are references.

    Raises:
        InvalidRequest: one comes twice, which OpenAI refuses too: a short input could stand for a
            prompt of any length.
    """
    found: dict[str, None] = {}
    for index, item in enumerate(items):
        reference = item.get("id")
        if _kind(item) != "item_reference" or not isinstance(reference, str):
            continue
        if reference in found:
            raise InvalidRequest(
                f"`input[{index}]`: duplicate item with id '{reference}'", "input", "duplicate_item"
            )
        found[reference] = None
    return list(found)


def input_items(
    request: Request, response_id: str | None = None, referenced: Mapping[str, Item] = _NONE
) -> list[Item]:
    """The request's own input in the form that is stored and listed.

    Args:
        request: a checked Responses request.
        response_id: the response that the items belong to, of which their ids are made.
        referenced: stored items by their ids; they stand in for references.
    """
    owner = response_id or f"resp_{uuid_utils.uuid7().hex}"
    items = []
    for index, given in enumerate(_given(request.members)):
        kind = _kind(given)
        if kind == "item_reference":
            items.append(_found(given, referenced, f"input[{index}]"))
            continue
        item = {**given, "type": kind}
        if not isinstance(item.get("id"), str):
            item["id"] = item_id(kind, owner, index, given=True)
        if kind == "message":
            item["content"] = _as_parts(item)
        item.setdefault("status", "completed")
        items.append(item)
    return items


def _as_parts(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if not isinstance(content, str):
        return content
    if message.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", "text": content}]


def to_chat(
    request: Request, history: Sequence[Item] = (), referenced: Mapping[str, Item] = _NONE
) -> ChatEquivalent:
    """A Responses request as chat.

    Args:
        request: a checked Responses request.
        history: input and output of the responses that it continues, oldest first.
        referenced: stored items by their ids, for the input's references.

    Raises:
        InvalidRequest: chat has no way to do what it asks; the parameter is named.
    """
    members = request.members
    for name in _UNSERVED:
        if name in members and bytes(members[name]) not in (b"null", b"false"):
            raise InvalidRequest(
                f"`{name}` is not available for this model", name, "unsupported_parameter"
            )
    items = _resolved(members, history, referenced)
    box = read_tools(_tools(members, items))
    offered = offer(box, _value(members, "tool_choice"))
    instructions = member(members, "instructions", str)
    messages = ChatHistory(box).messages(instructions, items)
    try:
        chat: RawObject = {"model": raw(request.model), "messages": raw(messages)}
        chat |= {name: raw(value) for name, value in _options(members, offered).items()}
    except RecursionError:
        raise InvalidRequest("`input` is nested too deeply", "input") from None
    if request.stream:
        chat["stream"] = raw(True)
    if request.max_tokens is not None:
        chat["max_completion_tokens"] = raw(request.max_tokens)
    prompt = read_prompt(chat, "messages")
    return ChatEquivalent(
        msgspec.structs.replace(
            request,
            members=chat,
            # The closing event of every stream reports usage.
            stream_options=StreamOptions(include_usage=True) if request.stream else None,
            prompt_characters=prompt.characters,
            legible=prompt.legible,
            images=prompt.images,
        ),
        box.dropped,
        _echo(members, box, prompt.characters),
    )


def _value(members: RawObject, name: str) -> Any:
    """A member as parsed JSON; None where it is absent."""
    text = members.get(name)
    if text is None:
        return None
    try:
        return mended(_anything, bytes(text))
    except RecursionError:
        raise InvalidRequest(f"`{name}` is nested too deeply", name) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"`{name}` is invalid: {error}", name) from None


def _object(members: RawObject, name: str) -> dict[str, Any]:
    value = _value(members, name)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object", name)
    return value or {}


def _list(members: RawObject, name: str) -> list[Any]:
    value = _value(members, name)
    if value is not None and not isinstance(value, list):
        raise InvalidRequest(f"`{name}` must be a list", name)
    return value or []


def _given(members: RawObject) -> list[Item]:
    """The input as items, as they came."""
    value = _value(members, "input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}] if value else []
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest("`input` must be text or a list of items", "input")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidRequest(f"`input[{index}]` must be an object", f"input[{index}]")
    return value


def _continues(members: RawObject) -> bool:
    """The request has a prompt from elsewhere."""
    names = ("previous_response_id", "conversation", "prompt")
    return any(bytes(members.get(name, b"null")) != b"null" for name in names)


def _kind(item: Mapping[str, Any]) -> str:
    """An item's type, which messages and references may leave out."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference"
    return kind if isinstance(kind, str) else ""


def _found(reference: Item, known: Mapping[str, Item], where: str) -> Item:
    item = known.get(str(reference.get("id")))
    if item is None:
        raise InvalidRequest(
            f"`{where}`: there is no item with id '{reference.get('id')}'",
            "input",
            "item_not_found",
        )
    return item


def _resolved(
    members: RawObject, history: Iterable[Item], referenced: Mapping[str, Item]
) -> list[tuple[str, str, Item]]:
    """All items in order, each with its type and place. A reference to an item that the history
    already has adds nothing; any other is replaced by its item."""
    items = [(_kind(item), "previous_response_id", item) for item in history]
    past = {item["id"] for _, _, item in items if isinstance(item.get("id"), str)}
    for index, given in enumerate(_given(members)):
        where, item, kind = f"input[{index}]", given, _kind(given)
        if kind == "item_reference":
            if str(given.get("id")) in past:
                continue
            item = _found(given, referenced, where)
            kind = _kind(item)
        items.append((kind, where, item))
    return items


def _tools(members: RawObject, items: Iterable[tuple[str, str, Item]]) -> list[Any]:
    """The tools offered, those that came up during the conversation included."""
    tools = _list(members, "tools")
    for kind, _, item in items:
        if kind == "additional_tools" and isinstance(more := item.get("tools"), list):
            tools += [tool for tool in more if tool not in tools]
    return tools


def _options(members: RawObject, offered: Offer) -> dict[str, Any]:
    """Everything of a chat request but its messages."""
    options: dict[str, Any] = {}
    if offered.tools:
        options["tools"] = offered.tools
        if offered.choice is not None:
            options["tool_choice"] = offered.choice
        parallel = member(members, "parallel_tool_calls", bool)
        if parallel is not None:
            options["parallel_tool_calls"] = parallel
    options |= _text_options(_object(members, "text"))
    effort = _object(members, "reasoning").get("effort")
    if effort is not None:
        options["reasoning_effort"] = effort
    top = member(members, "top_logprobs", int)
    if top or _LOGPROBS in _list(members, "include"):
        options |= {"logprobs": True, "top_logprobs": top or 0}
    for name in _COPIED:
        if name in members and bytes(members[name]) != b"null":
            options[name] = members[name]
    return options


def _text_options(text: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    form = text.get("format")
    if form is None:
        return options
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_schema":
        if not isinstance(form.get("name"), str) or not isinstance(form.get("schema"), dict):
            raise InvalidRequest("`text.format` must have a name and a schema", "text.format")
        schema = {name: value for name, value in form.items() if name != "type"}
        options["response_format"] = {"type": kind, "json_schema": schema}
    elif kind == "json_object":
        options["response_format"] = {"type": kind}
    elif kind != "text":
        raise InvalidRequest("`text.format.type` is not known", "text.format")
    return options


def _echo(members: RawObject, box: Toolbox, prompt_characters: int) -> Echo:
    said = {name: value for name in _DEFAULTS if (value := _value(members, name)) is not None}
    reasoning = _object(members, "reasoning")
    said["reasoning"] = {"effort": None, "summary": None, **reasoning}
    said["text"] = {"format": {"type": "text"}, **_object(members, "text")}
    said["tools"] = [_told(tool) for tool in _list(members, "tools")]
    return Echo(
        members={**_DEFAULTS, **said},
        called=box.called,
        seal_reasoning=_ENCRYPTED in _list(members, "include"),
        summarise=bool(reasoning.get("summary")),
        prompt_characters=prompt_characters,
    )


def _told(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as answers repeat it: members that the format requires are there."""
    if tool.get("type") != "function":
        return tool
    return {"parameters": None, "strict": None, **tool}
