"""What OpenAI promises of a chat answer and its imitators get wrong, put right.

Each call's first delta has a type, and arguments, which clients join to a text even where the
answer was cut before any came; each of its deltas has an index, and none but the first its id and
name, which clients would join too; an answer that calls ends with `tool_calls`, unless it was cut;
reasoning stands under `reasoning_content` too, the name that most clients know. Choices that need
none of this keep their bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire.objects import RawObject, mended, raw

_choices = msgspec.json.Decoder(list[RawObject])
_object = msgspec.json.Decoder(RawObject)
_anything = msgspec.json.Decoder()

#: What is not shaped as a choice passes as it is: others judge it.
_MISSHAPEN = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Calls:
    """The calls of one choice.

    Attributes:
        opened: the indexes that were given out, with the names of what is called.
    """

    def __init__(self) -> None:
        self.opened: dict[int, Any] = {}
        self._ids: dict[str, int] = {}
        self._places: dict[int, int] = {}
        self._last = 0

    def place(self, call: RawObject) -> int:
        """The index of a delta: its own, or that of its id, or the latest call's."""
        index, ident = _value(call, "index"), _value(call, "id")
        if isinstance(index, int) and index >= 0:
            index = self._told_apart(index, ident)
        elif isinstance(ident, str) and ident in self._ids:
            index = self._ids[ident]
        elif ident or not self.opened:
            index = max(self.opened, default=-1) + 1
        else:
            index = self._last
        if isinstance(ident, str) and ident:
            self._ids[ident] = index
        self._last = index
        return index

    def _told_apart(self, given: int, ident: Any) -> int:
        """The place of an index: a new one where a new id comes under an index that is taken."""
        place = self._places.setdefault(given, given)
        if not isinstance(ident, str) or not ident or self._ids.get(ident) == place:
            return place
        if place in self._ids.values():
            place = self._places[given] = max(self.opened, default=-1) + 1
        return place


class StreamRepairs:
    """Repairs of one stream."""

    def __init__(self) -> None:
        self._calls: dict[int, _Calls] = {}

    def has_called(self, index: int) -> bool:
        """Whether the choice has called a tool."""
        return index in self._calls

    def apply(self, choices: msgspec.Raw) -> msgspec.Raw | None:
        """A chunk's choices repaired; None where nothing was missing."""
        try:
            items = mended(_choices, bytes(choices))
            changed = [self._repair(choice) for choice in items]
        except _MISSHAPEN:
            return None
        return raw(items) if any(changed) else None

    def _repair(self, choice: RawObject) -> bool:
        index = _value(choice, "index") or 0
        delta = mended(_object, bytes(choice.get("delta", b"{}")))
        changed = _name_reasoning(delta)
        given = _list(delta, "tool_calls")
        if given:
            calls = self._calls.setdefault(index, _Calls())
            if any([_complete(call, calls) for call in given]):
                delta["tool_calls"] = raw(given)
                changed = True
        if changed:
            choice["delta"] = raw(delta)
        return _end_as_call(choice, index in self._calls) or changed


def repaired_choices(choices: msgspec.Raw) -> msgspec.Raw | None:
    """The choices of a whole answer repaired; None where nothing was missing."""
    try:
        items = mended(_choices, bytes(choices))
        changed = [_repair_whole(choice) for choice in items]
    except _MISSHAPEN:
        return None
    return raw(items) if any(changed) else None


def _repair_whole(choice: RawObject) -> bool:
    message = mended(_object, bytes(choice.get("message", b"{}")))
    calls = _list(message, "tool_calls")
    changed = _name_reasoning(message)
    if any([_name_type(call) for call in calls]):
        message["tool_calls"] = raw(calls)
        changed = True
    if changed:
        choice["message"] = raw(message)
    return _end_as_call(choice, bool(calls)) or changed


def _complete(call: RawObject, calls: _Calls) -> bool:
    place = calls.place(call)
    changed = _value(call, "index") != place
    if changed:
        call["index"] = raw(place)
    function = mended(_object, bytes(call.get("function", b"{}")))
    name = _value(function, "name")
    if place not in calls.opened:
        calls.opened[place] = name
        return any([_name_type(call), _begin_arguments(call, function), changed])
    repeated = [member for member in ("id", "type") if call.pop(member, None) is not None]
    if name is not None and name == calls.opened[place]:
        del function["name"]
        call["function"] = raw(function)
        repeated.append("name")
    return changed or bool(repeated)


def _name_type(call: RawObject) -> bool:
    if "function" not in call or bytes(call.get("type", b"null")) not in (b"null", b'""'):
        return False
    call["type"] = raw("function")
    return True


def _begin_arguments(call: RawObject, function: RawObject) -> bool:
    if not function or bytes(function.get("arguments", b"null")) != b"null":
        return False
    function["arguments"] = raw("")
    call["function"] = raw(function)
    return True


def _name_reasoning(said: RawObject) -> bool:
    reasoning = _value(said, "reasoning")
    if not isinstance(reasoning, str) or isinstance(_value(said, "reasoning_content"), str):
        return False
    said["reasoning_content"] = said["reasoning"]
    return True


def _end_as_call(choice: RawObject, called: bool) -> bool:
    if not called or bytes(choice.get("finish_reason", b"")) != b'"stop"':
        return False
    choice["finish_reason"] = raw("tool_calls")
    return True


def _value(members: RawObject, name: str) -> Any:
    text = members.get(name)
    return None if text is None else mended(_anything, bytes(text))


def _list(members: RawObject, name: str) -> list[RawObject]:
    text = bytes(members.get(name, b"null"))
    return [] if text == b"null" else mended(_choices, text)
