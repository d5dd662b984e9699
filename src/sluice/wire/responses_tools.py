"""Tools of the Responses format, offered through chat: nested, renamed where they must be, and
the way back from the name that the model called.

Chat upstreams know functions only. A custom tool becomes a function of one text; the functions of
a namespace stand beside the others; tools that run at the provider are left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from sluice.wire.errors import InvalidRequest

#: The one parameter of a custom tool's function.
CUSTOM_INPUT = "input"

_NAME_LIMIT = 64

#: What a tool's type looks like, known or not: the types of dropped tools go into a header.
_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
_COPIED = ("description", "parameters", "strict")


class Called(NamedTuple):
    """What a chat function stands for."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request.

    Attributes:
        functions: as chat takes them, by their names there.
        called: what each of them stands for.
        dropped: types of the tools that chat can't have, each once.
    """

    functions: Mapping[str, dict[str, Any]]
    called: Mapping[str, Called]
    dropped: tuple[str, ...]

    def chat_name(self, name: str, namespace: str | None) -> str:
        """The name in chat of a tool that was called earlier, whether still offered or not."""
        if namespace is None:
            return name
        for chat_name, called in self.called.items():
            if (called.name, called.namespace) == (name, namespace):
                return chat_name
        return name


def read_tools(tools: Sequence[Any]) -> Toolbox:
    """Read `tools`.

    Raises:
        InvalidRequest: one of them is malformed, or two have the same name.
    """
    functions: dict[str, dict[str, Any]] = {}
    called: dict[str, Called] = {}
    dropped: dict[str, None] = {}
    for tool, namespace, where in _flattened(tools):
        kind = tool["type"]
        if kind not in ("function", "custom"):
            dropped[kind] = None
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidRequest(
                f"`{where}.name` is required", f"{where}.name", "missing_required_parameter"
            )
        chat_name = name
        if namespace is not None and name in functions:
            chat_name = f"{namespace}__{name}"[:_NAME_LIMIT]
        if chat_name in functions:
            raise InvalidRequest(f"`{where}.name`: there are two tools `{name}`", f"{where}.name")
        custom = kind == "custom"
        functions[chat_name] = _custom(tool, chat_name) if custom else _function(tool, chat_name)
        called[chat_name] = Called(name, namespace, custom)
    return Toolbox(functions, called, tuple(dropped))


def _flattened(tools: Sequence[Any]) -> list[tuple[dict[str, Any], str | None, str]]:
    """Every tool with its namespace and its place. Functions outside of namespaces come first,
    since they keep their names whatever the namespaces hold."""
    plain: list[tuple[dict[str, Any], str | None, str]] = []
    spaced: list[tuple[dict[str, Any], str | None, str]] = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        _check(tool, where)
        if tool["type"] != "namespace":
            plain.append((tool, None, where))
            continue
        inner = tool.get("tools")
        if not isinstance(tool.get("name"), str) or not isinstance(inner, list):
            raise InvalidRequest(f"`{where}` must have a name and tools", where)
        for at, part in enumerate(inner):
            _check(part, f"{where}.tools[{at}]")
            spaced.append((part, tool["name"], f"{where}.tools[{at}]"))
    return plain + spaced


def _check(tool: Any, where: str) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise InvalidRequest(f"`{where}.type` is required", f"{where}.type")
    if not _TYPE.fullmatch(tool["type"]):
        raise InvalidRequest(f"`{where}.type` is not known", f"{where}.type")


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {key: tool[key] for key in _COPIED if tool.get(key) is not None}
    return {"type": "function", "function": {"name": name, **function}}


def _custom(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A grammar can't be enforced through chat; the model is told of it."""
    description = str(tool.get("description") or "")
    form = tool.get("format")
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        description += (
            f"\n\n`{CUSTOM_INPUT}` must follow this {form.get('syntax') or ''} grammar:\n"
            f"{form['definition']}"
        )
    function = {"name": name, "description": description.strip(), "parameters": _CUSTOM_PARAMETERS}
    return {"type": "function", "function": function}


class Offer(NamedTuple):
    """What chat is offered: functions, and the choice among them where one is made."""

    tools: list[dict[str, Any]]
    choice: Any = None


def offer(box: Toolbox, choice: Any) -> Offer:
    """The tools and the choice for chat.

    Args:
        box: the request's tools.
        choice: its `tool_choice`, or None.

    Raises:
        InvalidRequest: the choice is malformed, or forces a tool that chat can't have.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(box, choice)
    tools = list(box.functions.values())
    if choice is None or choice in ("none", "auto", "required"):
        return _plain(tools, choice)
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        raise InvalidRequest("`tool_choice` is invalid", "tool_choice")
    name = _chosen(box, choice)
    if name is None:
        raise InvalidRequest(
            f"`tool_choice` asks for {choice.get('name') or choice['type']}, which this model's "
            "upstream can't be made to call",
            "tool_choice",
            "unsupported_parameter",
        )
    return Offer(tools, {"type": "function", "function": {"name": name}})


def _plain(tools: list[dict[str, Any]], choice: Any) -> Offer:
    if not tools and choice == "required":
        raise InvalidRequest(
            "`tool_choice` is `required`, but this model's upstream can have none of the tools",
            "tool_choice",
            "unsupported_parameter",
        )
    return Offer(tools, choice if tools else None)


def _allowed(box: Toolbox, choice: Mapping[str, Any]) -> Offer:
    """The choice among a part of the tools: only that part is offered, which every upstream
    understands."""
    parts, mode = choice.get("tools"), choice.get("mode")
    if not isinstance(parts, list) or mode not in ("auto", "required"):
        raise InvalidRequest("`tool_choice` must have a mode and tools", "tool_choice")
    names = {_chosen(box, part) for part in parts if isinstance(part, dict)}
    return _plain([tool for name, tool in box.functions.items() if name in names], mode)


def _chosen(box: Toolbox, choice: Mapping[str, Any]) -> str | None:
    """The chat name of the function or custom tool that is meant, if there is one."""
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    if kind not in ("function", "custom") or not isinstance(name, str):
        return None
    for chat_name, called in box.called.items():
        if called.name == name and namespace in (None, called.namespace):
            return chat_name
    return None


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with; what isn't the expected object stays as it
    is."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return arguments
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
