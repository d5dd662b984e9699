"""Tools of chat requests, and the choice among them, as Anthropic's."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.wire.anthropic_answer import upstream_name
from sluice.wire.anthropic_content import Block, marked
from sluice.wire.anthropic_profile import AnthropicProfile, unsupported
from sluice.wire.anthropic_schema import closed_schema
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import RawObject, encode
from sluice.wire.request import Request, member


class Function(msgspec.Struct):
    """A function that is offered, or called."""

    name: str
    arguments: str = ""
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None
    cache_control: Block | None = None


class Tool(msgspec.Struct):
    """A tool that is offered, or the call of one."""

    type: str = "function"
    id: str | None = None
    function: Function | None = None
    cache_control: Block | None = None


def offered_functions(request: Request) -> list[Function]:
    """The functions among the tools."""
    functions = []
    for number, tool in enumerate(member(request.members, "tools", list[Tool]) or []):
        if tool.type != "function" or tool.function is None:
            raise unsupported(f"`{tool.type}` tools", f"tools[{number}]")
        tool.function.cache_control = tool.function.cache_control or tool.cache_control
        functions.append(tool.function)
    return functions


def tool_blocks(request: Request, profile: AnthropicProfile) -> dict[str, Block]:
    """The tools, by their upstream names."""
    return {
        (tool := tool_block(function, profile))["name"]: tool
        for function in offered_functions(request)
    }


def tool_block(function: Function, profile: AnthropicProfile) -> Block:
    """A tool as Anthropic has it described."""
    schema: Block = {"type": "object", **(function.parameters or {"properties": {}})}
    tool: Block = {"name": upstream_name(function.name), "input_schema": schema}
    if function.description:
        tool["description"] = function.description
    if function.strict and profile.schemas:
        where = f"tools.{function.name}.parameters"
        tool["input_schema"] = closed_schema(msgspec.json.decode(encode(schema)), where)
        tool["strict"] = True
    return marked([tool], function.cache_control)[0]


class _Allowed(msgspec.Struct):
    mode: str = "auto"
    tools: list[Tool] = []


class _Choice(msgspec.Struct):
    type: str = "function"
    function: Function | None = None
    allowed_tools: _Allowed | None = None


_CHOICES: Any = str | _Choice
_MODES = {"none": "none", "auto": "auto", "required": "any"}


def tool_choice(members: RawObject, tools: dict[str, Block]) -> Block | None:
    """The choice; from `tools`, those that aren't allowed are taken out."""
    asked = member(members, "tool_choice", _CHOICES)
    name: str | None = None
    if isinstance(asked, _Choice):
        if asked.type == "allowed_tools" and asked.allowed_tools is not None:
            allowed = {t.function.name for t in asked.allowed_tools.tools if t.function}
            for other in tools.keys() - {upstream_name(name) for name in allowed}:
                del tools[other]
            asked = asked.allowed_tools.mode
        elif asked.type == "function":
            name = asked.function.name if asked.function is not None else None
        else:
            raise unsupported(f"`{asked.type}` choice of tools", "tool_choice")
    if name is not None and upstream_name(name) not in tools:
        what = f"`tool_choice` names `{name}`, which is not among the tools"
        raise InvalidRequest(what, "tool_choice")
    if name is None and asked not in (None, *_MODES):
        what = "`tool_choice` is none of none, auto, required, or a tool"
        raise InvalidRequest(what, "tool_choice")
    if not tools:
        if asked == "required":
            raise InvalidRequest("`tool_choice` needs tools", "tool_choice")
        return None
    if name is not None:
        choice: Block = {"type": "tool", "name": upstream_name(name)}
    else:
        choice = {"type": _MODES[asked or "auto"]}
    one = member(members, "parallel_tool_calls", bool) is False
    if one and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice if one or asked is not None else None
