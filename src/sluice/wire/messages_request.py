"""Requests of Anthropic's Messages API: read and checked, and translated to chat.

As with chat requests, only members that the gateway acts on are looked at when a request is read;
towards an upstream of Anthropic's the rest passes byte for byte. The translation to chat knows
its members by name. What only tunes (cache marks, betas, tiers) is dropped; what the client
would miss in the answer is refused.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.inline_data import read_prompt
from sluice.wire.messages_content import chat_messages, read_part
from sluice.wire.messages_errors import THREAD_UNSUPPORTED
from sluice.wire.objects import RawObject, raw
from sluice.wire.request import OURS, Request, StreamOptions, member, permitted_members

#: The API version from which sampling parameters are refused, whatever their values.
WITHOUT_SAMPLING = "2026-10-21"

SAMPLING = ("temperature", "top_p", "top_k")

#: Limits of OpenAI's.
MAX_STOPS = 4
MAX_USER_ID = 128

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NULL = msgspec.Raw(b"null")
_ROLES = ("user", "assistant", "system")
_EMPTY_SCHEMA = msgspec.Raw(b'{"type":"object","properties":{}}')


class _Turn(msgspec.Struct):
    role: str
    content: msgspec.Raw


class _Thinking(msgspec.Struct):
    type: str = ""
    budget_tokens: int | None = None


class _Format(msgspec.Struct):
    type: str
    schema: msgspec.Raw = _NULL


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = _NULL
    strict: bool | None = None
    defer_loading: bool | None = None


class _ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Metadata(msgspec.Struct):
    user_id: str | None = None


_turns = msgspec.json.Decoder(list[_Turn])
_thinking = msgspec.json.Decoder(_Thinking)
_output_config = msgspec.json.Decoder(_OutputConfig)
_format = msgspec.json.Decoder(_Format)
_tools = msgspec.json.Decoder(list[_Tool])
_tool_choice = msgspec.json.Decoder(_ToolChoice)
_metadata = msgspec.json.Decoder(_Metadata)
_texts = msgspec.json.Decoder(list[str])
_anything = msgspec.json.Decoder(Any)

#: Keywords of JSON schema that OpenAI's strict mode refuses.
_NEVER_STRICT = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
    | {"patternProperties"}
)


def read_messages_request(body: bytes) -> Request:
    """Read a body. Its members stay as they came, without the gateway's own.

    Raises:
        InvalidRequest: with the parameter named.
    """
    members = read_members(body)
    tier, team = member(members, "x-tier", str), member(members, "x-team-id", str)
    disable_fallbacks = member(members, "disable_fallbacks", bool) or False
    for name in OURS:
        members.pop(name, None)
    max_tokens = member(members, "max_tokens", int)
    if max_tokens is None:
        raise _missing("max_tokens")
    if max_tokens < 0:
        raise InvalidRequest("`max_tokens` must be at least 0", "max_tokens")
    prompt = read_prompt(members, "system", "messages")
    return Request(
        members=members,
        model=member(members, "model", str) or "",
        stream=member(members, "stream", bool) or False,
        max_tokens=max_tokens,
        tier=tier,
        team_id=team,
        disable_fallbacks=disable_fallbacks,
        prompt_characters=prompt.characters,
        legible=prompt.legible,
        images=prompt.images,
    )


def read_members(body: bytes) -> RawObject:
    """The members of a body with a model and messages, as `count_tokens` has it too.

    Raises:
        InvalidRequest: with the parameter named.
    """
    members = permitted_members(body)
    if not member(members, "model", str):
        raise _missing("model")
    try:
        turns = read_part(members, "messages", _turns)
    except RecursionError:
        raise InvalidRequest("`messages` is nested too deeply", "messages") from None
    if turns is None:
        raise _missing("messages")
    if not turns:
        raise InvalidRequest("`messages` must hold at least one message", "messages")
    for position, turn in enumerate(turns):
        if turn.role not in _ROLES:
            where = f"messages[{position}].role"
            raise InvalidRequest(f"`{where}` must be user, assistant or system", where)
    return members


def check_version(request: Request, version: str | None) -> None:
    """Refuse what the API version that the client named has no place for, as Anthropic does.

    Args:
        request: a Messages request.
        version: its `anthropic-version` header, a date.

    Raises:
        InvalidRequest: a sampling parameter, under a version without them.
    """
    if version is None or not _DATE.fullmatch(version) or version < WITHOUT_SAMPLING:
        return
    for name in SAMPLING:
        if name in request.members:
            raise InvalidRequest(
                f"`{name}` is not supported with anthropic-version {version}",
                name,
                "unsupported_parameter",
            )


def to_chat(
    request: Request, *, vllm: bool, reasoning: bool = True, system_first: bool = False
) -> Request:
    """The chat request that asks for the same.

    Streams are marked as wanting usage, which Anthropic's always report; the upstream's dialect
    decides by which member it is asked.

    Args:
        request: a Messages request.
        vllm: the upstream is vLLM, whose chat takes more than OpenAI's.
        reasoning: the model takes `reasoning_effort`; where not, thinking is left to it.
        system_first: the model's chat template takes a system message at the start only (many
            that vLLM serves; Claude Code sends some in between).

    Raises:
        InvalidRequest: chat has no way to do what it asks; names the parameter.
    """
    # To fill a cache only, Anthropic takes a bound of 0; for chat one token is the least.
    limit = max(request.max_tokens or 0, 1)
    _refuse_server_side(request.members)
    try:
        messages = chat_messages(request.members, vllm=vllm, system_first=system_first)
        members = _members(request, messages, limit, vllm, reasoning)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from None
    return msgspec.structs.replace(
        request,
        members=members,
        max_tokens=limit,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
    )


def _members(
    request: Request, messages: list[dict[str, Any]], limit: int, vllm: bool, reasoning: bool
) -> RawObject:
    given = request.members
    chat: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "max_completion_tokens": limit,
    }
    if request.stream:
        chat["stream"] = True
    chat |= _tool_members(given) | _sampling(given, vllm) | _response_format(given)
    if reasoning:
        chat |= _reasoning(given, vllm)
    if not vllm:
        chat |= _account(given)
    return {name: raw(value) for name, value in (chat | _prefill(messages, vllm)).items()}


def _refuse_server_side(given: RawObject) -> None:
    """What only Anthropic's servers could do, and the client relies on."""
    if bytes(given.get("thread", _NULL)) != b"null":
        raise InvalidRequest(
            "`thread`: conversations are not held for this model; send all messages",
            "thread",
            THREAD_UNSUPPORTED,
        )
    if bytes(given.get("mcp_servers", _NULL)) not in (b"null", b"[]"):
        raise _unsupported("mcp_servers", "MCP servers are not called for this model")


def _prefill(messages: list[dict[str, Any]], vllm: bool) -> dict[str, Any]:
    """A last message of the assistant's is the beginning of the answer."""
    if messages[-1]["role"] != "assistant" or not messages[-1]["content"]:
        return {}
    if not vllm:
        raise _unsupported("messages", "this model can't continue an assistant's message")
    return {"continue_final_message": True, "add_generation_prompt": False}


def _tool_members(given: RawObject) -> dict[str, Any]:
    offered = read_part(given, "tools", _tools) or []
    tools = [
        _function(tool, f"tools[{position}]")
        for position, tool in enumerate(offered)
        if not _is_dispensable(tool)
    ]
    choice = read_part(given, "tool_choice", _tool_choice)
    if not tools:  # an empty list is refused by all
        if choice is not None and choice.type in ("any", "tool"):
            raise InvalidRequest("`tool_choice` asks for a tool, and there is none", "tool_choice")
        return {}
    members: dict[str, Any] = {"tools": tools}
    if choice is not None:
        members["tool_choice"] = _choice(choice, tools)
        if choice.disable_parallel_tool_use:
            members["parallel_tool_calls"] = False
    return members


def _is_dispensable(tool: _Tool) -> bool:
    """A tool of Anthropic's servers that is not in use yet, or that only finds such tools: here
    all tools are there from the start."""
    server = tool.type not in (None, "custom")
    return server and (bool(tool.defer_loading) or (tool.type or "").startswith("tool_search_"))


def _function(tool: _Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise _unsupported(where, f"tools of type {tool.type} are not run for this model")
    if not tool.name:
        raise _missing(f"{where}.name")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    schema = bytes(tool.input_schema)
    function["parameters"] = _EMPTY_SCHEMA if schema == b"null" else tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: _ToolChoice, tools: list[dict[str, Any]]) -> str | dict[str, Any]:
    if choice.type == "tool":
        if choice.name not in [tool["function"]["name"] for tool in tools]:
            raise InvalidRequest(
                "`tool_choice.name` is none of the tools' names", "tool_choice.name"
            )
        return {"type": "function", "function": {"name": choice.name}}
    known = {"auto": "auto", "any": "required", "none": "none"}.get(choice.type)
    if known is None:
        raise InvalidRequest(
            "`tool_choice.type` must be auto, any, tool or none", "tool_choice.type"
        )
    return known


def _sampling(given: RawObject, vllm: bool) -> dict[str, Any]:
    names = SAMPLING if vllm else ("temperature", "top_p")
    members: dict[str, Any] = {
        name: given[name] for name in names if bytes(given.get(name, _NULL)) != b"null"
    }
    stops = read_part(given, "stop_sequences", _texts) or []
    if len(stops) > MAX_STOPS:
        raise _unsupported(
            "stop_sequences", f"this model takes at most {MAX_STOPS}, not {len(stops)}"
        )
    if "" in stops:
        raise InvalidRequest("`stop_sequences` must not hold an empty text", "stop_sequences")
    return {**members, "stop": stops} if stops else members


def _reasoning(given: RawObject, vllm: bool) -> dict[str, Any]:
    """How much to think. OpenAI's models differ in whether they take `none`, so that disabled
    thinking is not asked of them: their default is better than a refusal."""
    thinking = read_part(given, "thinking", _thinking) or _Thinking()
    effort = (read_part(given, "output_config", _output_config) or _OutputConfig()).effort
    if thinking.type == "disabled":
        return {"reasoning_effort": "none"} if vllm else {}
    members: dict[str, Any] = {}
    if thinking.type == "enabled":
        budget = thinking.budget_tokens
        if budget is None:
            raise _missing("thinking.budget_tokens")
        if vllm:
            members["thinking_token_budget"] = budget
        elif effort is None:
            effort = _effort(budget)
    if effort is not None:
        members["reasoning_effort"] = effort
    return members


def _effort(budget: int) -> str:
    """The effort nearest to a budget of tokens; the steps are those that Claude Code asks for by
    the words think, think hard and ultrathink."""
    if budget <= 4_096:
        return "low"
    return "medium" if budget <= 16_384 else "high"


def _response_format(given: RawObject) -> dict[str, Any]:
    config = read_part(given, "output_config", _output_config) or _OutputConfig()
    wanted = config.format or read_part(given, "output_format", _format)  # an older beta's name
    if wanted is None:
        return {}
    schema = read_part({"schema": wanted.schema}, "schema", _anything)
    if wanted.type != "json_schema" or not isinstance(schema, dict):
        raise InvalidRequest(
            "`output_config.format` must be a json_schema with its schema", "output_config.format"
        )
    form = {"name": "output", "schema": wanted.schema, "strict": _can_be_strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _can_be_strict(schema: Any) -> bool:
    """OpenAI keeps to a schema without fail where every object is closed and has no optional
    member; in that mode it refuses all others."""
    if isinstance(schema, list):
        return all(map(_can_be_strict, schema))
    if not isinstance(schema, dict):
        return True
    if not _NEVER_STRICT.isdisjoint(schema):
        return False
    parts = dict(schema)
    members = parts.pop("properties", None)
    if isinstance(members, dict):
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if set(members) != set(map(str, required)):
            return False
        parts |= {f"properties.{name}": part for name, part in members.items()}
    elif schema.get("type") == "object":
        return False
    return all(map(_can_be_strict, parts.values()))


def _account(given: RawObject) -> dict[str, Any]:
    """Whom the call is for, and on which terms."""
    members: dict[str, Any] = {}
    metadata = read_part(given, "metadata", _metadata) or _Metadata()
    if user := metadata.user_id:
        if len(user) > MAX_USER_ID:  # Claude Code's are
            user = hashlib.sha256(user.encode()).hexdigest()
        members["safety_identifier"] = user
    if member(given, "service_tier", str) == "standard_only":
        members["service_tier"] = "default"
    return members


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` is required", name, "missing_required_parameter")


def _unsupported(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}`: {why}", name, "unsupported_parameter")
