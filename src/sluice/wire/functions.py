"""Functions, which is what OpenAI's chat had before tools, for upstreams that know tools only.

A request that speaks of functions (`functions`, `function_call`, messages of the role `function`)
becomes one of tools, with one call at a time; the answer's call becomes a `function_call` again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire import sse
from sluice.wire.codec import UNREADABLE_EVENT
from sluice.wire.errors import ErrorDetail, InvalidRequest
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode, mended, raw
from sluice.wire.request import Request, member

_NONE = (b"", b"null", b"[]")

_objects = msgspec.json.Decoder(list[RawObject])
_object = msgspec.json.Decoder(RawObject)


class _Function(msgspec.Struct):
    name: str


def offers_functions(request: Request) -> bool:
    """Whether a chat request's answer may call a function."""
    return bytes(request.members.get("functions", b"")) not in _NONE


def as_tools(request: Request) -> Request:
    """The chat request in terms of tools; the very same one where it says nothing of functions.

    Raises:
        InvalidRequest: `function_call`, or a message, has none of the shapes that OpenAI gives
            it; names the parameter.
    """
    members = dict(request.members)
    history = b'"function_call"' in bytes(members.get("messages", b""))
    if not history and "functions" not in members and "function_call" not in members:
        return request
    functions = member(members, "functions", list[RawObject]) or []
    names = {_function(each, f"functions[{place}]") for place, each in enumerate(functions)}
    choice = _choice(members, names)
    members.pop("functions", None)
    members.pop("function_call", None)
    if functions:
        offered = [{"type": "function", "function": each} for each in functions]
        members["tools"] = raw([*offered, *(member(members, "tools", list[msgspec.Raw]) or [])])
        members["parallel_tool_calls"] = raw(False)
    if choice is not None:
        members["tool_choice"] = raw(choice)
    if history:
        messages = member(members, "messages", list[RawObject]) or []
        members["messages"] = raw(_with_calls(messages))
    return msgspec.structs.replace(request, members=members)


def _function(function: RawObject, where: str) -> str:
    name = _text(function, "name")
    if not name:
        raise InvalidRequest(f"`{where}.name` is required", f"{where}.name")
    return name


def _choice(members: RawObject, names: set[str]) -> Any:
    """`tool_choice` of what `function_call` says; None: it says nothing."""
    asked = member(members, "function_call", str | _Function)
    if isinstance(asked, _Function):
        if asked.name not in names:
            what = f"`function_call` names `{asked.name}`, which is not among the functions"
            raise InvalidRequest(what, "function_call")
        return {"type": "function", "function": {"name": asked.name}}
    if asked not in (None, "none", "auto"):
        what = "`function_call` is neither none, nor auto, nor a function's name"
        raise InvalidRequest(what, "function_call")
    return asked if names else None


def _with_calls(messages: list[RawObject]) -> list[RawObject]:
    """Calls and their results, which functions join by name, joined by ids instead.

    An id tells the place of its call, so that it is the same on every turn and caches hold.
    """
    out: list[RawObject] = []
    waiting: dict[str, str] = {}
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        changed = dict(message)
        if bytes(changed.pop("function_call", msgspec.Raw(b"null"))) != b"null":
            function = member(message, "function_call", RawObject)
            waiting[_function(function, f"{where}.function_call")] = ident = f"call_{place}"
            call = {"id": ident, "type": "function", "function": function}
            changed["tool_calls"] = raw([call])
        elif _text(message, "role") == "function":
            name = _text(changed, "name") or ""
            if name not in waiting:
                what = f"`{where}.name`: no call of the function `{name}` waits for a result"
                raise InvalidRequest(what, f"{where}.name")
            del changed["name"]
            changed |= {"role": raw("tool"), "tool_call_id": raw(waiting.pop(name))}
        out.append(changed)
    return out


def _text(members: RawObject, name: str) -> str | None:
    value: str | None = member(members, name, str)
    return value


def as_function_call(answer: bytes) -> bytes:
    """A whole chat answer, its call as a `function_call`.

    Raises:
        MalformedJSON: the answer can't be read.
    """
    members = decode_object(answer)
    try:
        choices = mended(_objects, bytes(members["choices"]))
        members["choices"] = raw([_said(choice, "message") for choice in choices])
    except (KeyError, msgspec.DecodeError) as error:
        raise MalformedJSON(str(error)) from None
    return encode(members)


def _said(choice: RawObject, name: str) -> RawObject:
    """A choice whose message, or delta, calls a function instead of tools."""
    said = mended(_object, bytes(choice.get(name, b"{}")))
    said.pop("function_call", None)  # null, from upstreams that write all members
    called = bytes(said.pop("tool_calls", msgspec.Raw(b"null")))
    for call in [] if called in _NONE else mended(_objects, called):
        if bytes(call.get("index", b"0")) == b"0":  # an engine may call more, though it is told not
            said.setdefault("function_call", call["function"])
    changed = {**choice, name: raw(said)}
    if bytes(changed.get("finish_reason", b"")) == b'"tool_calls"':
        changed["finish_reason"] = raw("function_call")
    return changed


class FunctionCallStream:
    """A chat stream of tool calls as one of `function_call`; see `ClientStream`."""

    def __init__(self) -> None:
        self.failure: ErrorDetail | None = None
        self._parser = sse.Parser()

    def feed(self, piece: bytes) -> bytes:
        """See `ClientStream`."""
        if self.failure is not None:
            return b""
        try:
            return b"".join(self._take(event.data) for event in self._parser.feed(piece))
        except (sse.SSEError, KeyError, ValueError, RecursionError):
            self.failure = UNREADABLE_EVENT
            return b""

    def tail(self) -> bytes:
        """See `ClientStream`. The end marker came with the rest."""
        return b"" if self.failure is None else self.error(self.failure)

    def error(self, detail: ErrorDetail) -> bytes:
        """See `ClientStream`."""
        return sse.encode(detail.body())

    def _take(self, data: bytes) -> bytes:
        if b'"tool_calls"' not in data:
            return sse.encode(data)
        members = decode_object(data)
        choices = mended(_objects, bytes(members.get("choices", b"[]")))
        members["choices"] = raw([_said(choice, "delta") for choice in choices])
        return sse.encode(encode(members))
