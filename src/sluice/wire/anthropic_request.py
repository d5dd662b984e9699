"""A chat request as a request of Anthropic's Messages.

Each member is translated, refused by name, or dropped by one of the tables below; none is lost
otherwise. Where Anthropic has rules that OpenAI hasn't:

- Leading system and developer messages become `system`. A later one stays where it is: as a
  system message where the model takes one there, else as text `<system>…</system>` in the user's
  turn.
- Turns of one role merge, results of tools lead their turn, blank text blocks disappear.
- A conversation that doesn't begin with the user gets a first turn `(start)`.
- A conversation with tool calls but no tools gets the called ones declared, and not to be called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sluice.wire.anthropic_answer import (
    NameMap,
    attachment,
    closed_schema,
    upstream_id,
    upstream_name,
)
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode
from sluice.wire.request import Request, member

Block = dict[str, Any]

MAX_BREAKPOINTS = 4


@dataclass(frozen=True, slots=True)
class AnthropicProfile:
    """What a model of Anthropic's takes.

    Attributes:
        model: its name upstream.
        thinking: how it is asked to think: it decides itself, by a budget, or not at all.
        sampling: the sampling parameters that it takes.
        effort: the levels of effort that it takes, ascending; none where the parameter is refused.
        system_turns: takes system messages inside the conversation.
        disabled: takes `thinking: disabled`.
        prefill: takes a conversation that ends with the assistant.
        schemas: takes output formats and strict tools.
        max_output: bound on output tokens, where known.
    """

    model: str
    thinking: Literal["adaptive", "budget", "none"] = "adaptive"
    sampling: Literal["all", "default_only", "none"] = "none"
    effort: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    system_turns: bool = False
    disabled: bool = False
    prefill: bool = False
    schemas: bool = True
    max_output: int | None = None


_VERSION = re.compile(r"claude-([a-z]+)-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_BUDGET: Mapping[str, Any] = {"thinking": "budget", "sampling": "all", "prefill": True}
_OLD: Mapping[str, Any] = {**_BUDGET, "thinking": "none", "effort": (), "schemas": False}
_4_6: Mapping[str, Any] = {
    "sampling": "all",
    "effort": ("low", "medium", "high", "max"),
    "disabled": True,
}

#: What differs from a newer model that isn't known.
_MODELS: Mapping[tuple[str, int, int], Mapping[str, Any]] = {
    ("fable", 5, 0): {"system_turns": True},
    ("mythos", 5, 0): {"system_turns": True},
    ("opus", 5, 0): {"system_turns": True, "disabled": True},
    ("sonnet", 5, 0): {"sampling": "default_only", "disabled": True},
    ("opus", 4, 8): {"system_turns": True, "disabled": True},
    ("opus", 4, 7): {"disabled": True},
    ("opus", 4, 6): _4_6,
    ("sonnet", 4, 6): _4_6,
    ("opus", 4, 5): {**_BUDGET, "effort": ("low", "medium", "high"), "disabled": True},
    ("sonnet", 4, 5): {**_BUDGET, "effort": (), "disabled": True},
    ("haiku", 4, 5): {**_BUDGET, "effort": (), "disabled": True},
}


def profile_of(model: str) -> AnthropicProfile:
    """The profile of a model by its name, a date or a cloud's affixes on it notwithstanding."""
    if re.search(r"claude-(\d|instant|v\d)", model):  # names before Claude 4
        return AnthropicProfile(model, **_OLD)
    found = _VERSION.search(model)
    if found is None:
        return AnthropicProfile(model)
    version = (int(found[2]), int(found[3] or 0))
    known = _MODELS.get((found[1], *version), _OLD if version < (4, 5) else {})
    return AnthropicProfile(model, **known)


#: Have no counterpart and don't change what the answer means; gone without a word.
# fmt: off
DROPPED = frozenset((
    "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "seed",
    "store", "stream_options", "verbosity"
))
# fmt: on

# fmt: off
_TRANSLATED = frozenset((
    "function_call", "functions", "max_completion_tokens", "max_tokens", "messages", "metadata",
    "model", "parallel_tool_calls", "reasoning_effort", "response_format", "safety_identifier",
    "service_tier", "stop", "stream", "temperature", "tool_choice", "tools", "top_k", "top_p",
    "user"
))
# fmt: on

#: The values at which members without a counterpart ask for nothing.
_NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "include_reasoning": True,
    "logit_bias": {},
    "logprobs": False,
    "min_p": 0,
    "min_tokens": 0,
    "modalities": ["text"],
    "n": 1,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "top_logprobs": 0,
}


class _ImageURL(msgspec.Struct):
    url: str


class _File(msgspec.Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageURL | None = None
    file: _File | None = None
    cache_control: Block | None = None
    prompt_cache_breakpoint: Block | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None
    cache_control: Block | None = None


class _Tool(msgspec.Struct):
    """A tool that is offered, or the call of one."""

    type: str = "function"
    id: str | None = None
    function: _Function | None = None
    cache_control: Block | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[_Tool] | None = None
    function_call: _Function | None = None
    tool_call_id: str | None = None
    thinking_blocks: list[RawObject] | None = None
    cache_control: Block | None = None


def _unsupported(what: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"this model takes no {what}", param, "unsupported_parameter")


def names_of(request: Request) -> NameMap:
    """What the answer's codec needs to know of the request."""
    offered = _offered(request)
    client = {upstream_name(tool.name): tool.name for tool in offered}
    return NameMap(
        {theirs: ours for theirs, ours in client.items() if theirs != ours},
        legacy=bool(member(request.members, "functions", list[_Function])),
    )


def to_messages(request: Request, profile: AnthropicProfile) -> bytes:
    """The body for `POST /v1/messages`.

    Args:
        request: a checked chat request with a bound on its output.
        profile: of the upstream's model.

    Raises:
        InvalidRequest: it asks for what the model, or Anthropic, doesn't have; names the parameter.
    """
    try:
        return encode(_translated(request, profile))
    except (RecursionError, msgspec.DecodeError):  # numbers may be out of range
        raise InvalidRequest("the request holds a value that can't be read") from None


def _translated(request: Request, profile: AnthropicProfile) -> Block:
    members = request.members
    _refuse_what_has_no_counterpart(members)
    talk = _Conversation(profile)
    for number, message in enumerate(member(members, "messages", list[_Message]) or []):
        talk.add(message, f"messages[{number}]")
    turns = talk.turns()
    tools = _tools(request, profile)
    choice = _tool_choice(members, tools, bool(member(members, "functions", list[_Function])))
    if not tools and talk.called:
        tools = {name: _tool(_Function(name), profile) for name in dict.fromkeys(talk.called)}
        choice = {"type": "none"}
    forced = choice is not None and choice["type"] in ("any", "tool")
    body: Block = {"model": profile.model, "max_tokens": _max_tokens(request, profile)}
    thinking = _thinking(members, profile, body["max_tokens"], forced or talk.forgot_thinking)
    config, instruction = _output_config(members, profile)
    system = [*talk.system, *([_text(instruction)] if instruction else [])]
    optional = {
        "system": system,
        "messages": turns,
        "tools": list(tools.values()),
        "tool_choice": choice,
        "thinking": thinking,
        "output_config": config,
        "stop_sequences": _stops(members),
        "metadata": _user(members),
        "service_tier": _tier(members),
        "stream": request.stream,
        **_sampling(members, profile, thinking),
    }
    body |= {name: value for name, value in optional.items() if value or isinstance(value, float)}
    if sum(1 for _ in _breakpoints([*system, *turns, *tools.values()])) > MAX_BREAKPOINTS:
        raise InvalidRequest("at most 4 cache breakpoints are possible", "messages")
    return body


def _refuse_what_has_no_counterpart(members: RawObject) -> None:
    for name, value in members.items():
        if name in _TRANSLATED or name in DROPPED or bytes(value) == b"null":
            continue
        if name not in _NEUTRAL or msgspec.json.decode(value) != _NEUTRAL[name]:
            raise _unsupported(f"`{name}`", name)


class _Conversation:
    """Messages becoming turns.

    Attributes:
        system: blocks of the leading system messages.
        called: upstream names of the tools that the conversation calls.
        forgot_thinking: the answer continues an assistant's turn that doesn't begin with
            thinking, which forbids thinking by a budget.
    """

    def __init__(self, profile: AnthropicProfile) -> None:
        self.system: list[Block] = []
        self.called: list[str] = []
        self.forgot_thinking = False
        self._profile = profile
        self._turns: list[tuple[str, list[Block]]] = []
        self._ids: dict[str, int] = {}
        self._open: dict[str, str] = {}  # calls without a result: the client's id to ours

    def add(self, message: _Message, where: str) -> None:
        """Take the next message."""
        role = message.role
        if role in ("system", "developer"):
            blocks = _marked(_blocks(message, where), message.cache_control)
            if self._turns:
                self._append("system", blocks)
            else:
                self.system += blocks
        elif role == "user":
            self._append("user", _marked(_blocks(message, where), message.cache_control))
        elif role == "assistant":
            self._assistant(message, where)
        elif role in ("tool", "function"):
            self._append("user", [self._result(message, where)])
        else:
            raise InvalidRequest(f"`{role}` is no role", f"{where}.role")

    def turns(self) -> list[Block]:
        """The whole conversation."""
        self._settle()
        out: list[Block] = [{"role": "user", "content": []}]
        for place, (role, blocks) in enumerate(self._turns):
            if role == "system" and not self._takes_system(place):
                role = "user"  # noqa: PLW2901
                for block in blocks:
                    block["text"] = f"<system>\n{block['text']}\n</system>"
            if out[-1]["role"] == role:
                out[-1]["content"] += blocks
            else:
                out.append({"role": role, "content": list(blocks)})
        if not out[0]["content"]:
            out[0]["content"] = [_text("(start)")]
        for turn in out:
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
        last = out[-1]
        if last["role"] == "assistant" and not self._profile.prefill:
            raise InvalidRequest(
                "this model takes no conversation that ends with the assistant", "messages"
            )
        if last["content"][0]["type"] == "tool_result":
            last = out[-2]
        if last["role"] == "assistant":
            self.forgot_thinking = not _is_thinking(last["content"][0])
        return out

    def _takes_system(self, place: int) -> bool:
        after_user = self._turns[place - 1][0] == "user"
        before = self._turns[place + 1][0] if place + 1 < len(self._turns) else "assistant"
        return self._profile.system_turns and after_user and before == "assistant"

    def _append(self, role: str, blocks: list[Block]) -> None:
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(blocks)
        elif blocks:
            self._turns.append((role, blocks))

    def _settle(self) -> None:
        if self._open:
            missing = ", ".join(f"`{name}`" for name in self._open)
            raise InvalidRequest(f"no tool message answers the tool calls {missing}", "messages")

    def _assistant(self, message: _Message, where: str) -> None:
        if self._turns and self._turns[-1][0] != "assistant":
            self._settle()
        blocks = list(_thinking_blocks(message, where))
        text = _blocks(message, where)
        if message.refusal:
            text.append(_text(message.refusal))
        calls = [
            self._call(call.function, call.id, f"{where}.tool_calls[{number}]")
            for number, call in enumerate(message.tool_calls or [])
        ]
        if (function := message.function_call) is not None:
            calls.append(self._call(function, function.name, f"{where}.function_call"))
        self._append("assistant", _marked([*blocks, *text, *calls], message.cache_control))

    def _call(self, function: _Function | None, name: str | None, where: str) -> Block:
        if function is None:
            raise _unsupported("tool calls but those of functions", where)
        if not name or name in self._open:
            raise InvalidRequest(f"`{where}` needs an id of its own", where)
        ident = upstream_id(name)
        again = self._ids[ident] = self._ids.get(ident, 0) + 1
        if again > 1:  # some servers count from 0 on every turn
            ident = f"{ident}_{again}"
        self._open[name] = ident
        self.called.append(upstream_name(function.name))
        try:
            arguments = decode_object(function.arguments.encode()) if function.arguments else {}
        except MalformedJSON as error:
            where += ".arguments" if where.endswith("function_call") else ".function.arguments"
            raise InvalidRequest(f"`{where}` is no JSON object: {error}", where) from None
        return {"type": "tool_use", "id": ident, "name": self.called[-1], "input": arguments}

    def _result(self, message: _Message, where: str) -> Block:
        member_name = "tool_call_id" if message.role == "tool" else "name"
        name = message.tool_call_id if message.role == "tool" else message.name
        if not name or name not in self._open:
            what = f"`{name}` answers no tool call of the turn before"
            raise InvalidRequest(what, f"{where}.{member_name}")
        block: Block = {"type": "tool_result", "tool_use_id": self._open.pop(name)}
        if content := _blocks(message, where):
            block["content"] = content
        if message.cache_control is not None:
            block["cache_control"] = message.cache_control
        return block


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _is_thinking(block: Block) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


def _marked(blocks: list[Block], cache_control: Block | None) -> list[Block]:
    """With a cache breakpoint on the last block."""
    if cache_control is not None and blocks:
        blocks[-1]["cache_control"] = cache_control
    return blocks


def _blocks(message: _Message, where: str) -> list[Block]:
    """A message's content. Blank texts are refused upstream, and say nothing."""
    content, where = message.content, f"{where}.content"
    if isinstance(content, str):
        return [_text(content)] if content.strip() else []
    blocks: list[Block] = []
    for number, part in enumerate(content or []):
        block = _part(part, message.role in ("user", "tool"), f"{where}[{number}]")
        if block["type"] != "text" or block["text"].strip():
            blocks += _marked([block], part.cache_control)
    return blocks


def _part(part: _Part, files: bool, where: str) -> Block:
    if part.type in ("text", "refusal"):
        block = _text(part.text or part.refusal or "")
    elif part.type == "image_url" and part.image_url is not None and files:
        block = _image(part.image_url.url, f"{where}.image_url")
    elif part.type == "file" and part.file is not None and files:
        if part.file.file_data is None:
            raise _unsupported("files by id", f"{where}.file.file_id")
        block = attachment(part.file.file_data, f"{where}.file.file_data", part.file.filename)
    else:
        raise _unsupported(f"`{part.type}` content here", where)
    if part.prompt_cache_breakpoint is not None:
        block["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    return block


def _image(url: str, where: str) -> Block:
    if url.startswith(("http://", "https://")):  # fetched by Anthropic, never by the gateway
        return {"type": "image", "source": {"type": "url", "url": url}}
    block = attachment(url, where) if url.startswith("data:") else {}
    if block.get("type") != "image":
        raise InvalidRequest(f"`{where}` is no png, jpeg, gif or webp image", where)
    return block


def _thinking_blocks(message: _Message, where: str) -> Iterator[Block]:
    """The blocks that a client returns, as they came, without the index that streams give them."""
    for number, block in enumerate(message.thinking_blocks or []):
        kind = msgspec.json.decode(block.get("type", b"null"))
        seal = "data" if kind == "redacted_thinking" else "signature"
        empty = not any(_content(block, name) for name in (seal, "thinking"))
        if kind == "thinking" and empty:
            continue
        if kind not in ("thinking", "redacted_thinking") or not _content(block, seal):
            param = f"{where}.thinking_blocks[{number}]"
            raise InvalidRequest(f"`{param}` is no thinking that Anthropic has signed", param)
        yield {name: value for name, value in block.items() if name != "index"} | {"type": kind}


def _content(block: RawObject, name: str) -> bool:
    return bytes(block.get(name, b"null")) not in (b"null", b'""')


def _offered(request: Request) -> list[_Function]:
    """The functions among the tools, under whichever name they came."""
    functions = list(member(request.members, "functions", list[_Function]) or [])
    for number, tool in enumerate(member(request.members, "tools", list[_Tool]) or []):
        if tool.type != "function" or tool.function is None:
            raise _unsupported(f"`{tool.type}` tools", f"tools[{number}]")
        tool.function.cache_control = tool.function.cache_control or tool.cache_control
        functions.append(tool.function)
    return functions


def _tools(request: Request, profile: AnthropicProfile) -> dict[str, Block]:
    """The tools, by their upstream names."""
    return {(tool := _tool(function, profile))["name"]: tool for function in _offered(request)}


def _tool(function: _Function, profile: AnthropicProfile) -> Block:
    schema: Block = {"type": "object", **(function.parameters or {"properties": {}})}
    tool: Block = {"name": upstream_name(function.name), "input_schema": schema}
    if function.description:
        tool["description"] = function.description
    if function.strict and profile.schemas:
        where = f"tools.{function.name}.parameters"
        tool["input_schema"] = closed_schema(msgspec.json.decode(encode(schema)), where)
        tool["strict"] = True
    return _marked([tool], function.cache_control)[0]


class _Allowed(msgspec.Struct):
    mode: str = "auto"
    tools: list[_Tool] = []


class _Choice(msgspec.Struct):
    """`tool_choice`, or `function_call` that names a function."""

    type: str = "function"
    name: str | None = None
    function: _Function | None = None
    allowed_tools: _Allowed | None = None


_CHOICES: Any = str | _Choice
_MODES = {"none": "none", "auto": "auto", "required": "any"}


def _tool_choice(members: RawObject, tools: dict[str, Block], legacy: bool) -> Block | None:
    """The choice; from `tools`, those that aren't allowed are taken out."""
    param = "tool_choice" if member(members, "tool_choice", _CHOICES) else "function_call"
    asked = member(members, param, _CHOICES)
    name: str | None = None
    if isinstance(asked, _Choice):
        if asked.type == "allowed_tools" and asked.allowed_tools is not None:
            allowed = {t.function.name for t in asked.allowed_tools.tools if t.function}
            for other in tools.keys() - {upstream_name(name) for name in allowed}:
                del tools[other]
            asked = asked.allowed_tools.mode
        elif asked.type == "function":
            name = asked.function.name if asked.function is not None else asked.name
        else:
            raise _unsupported(f"`{asked.type}` choice of tools", param)
    if name is not None and upstream_name(name) not in tools:
        raise InvalidRequest(f"`{param}` names `{name}`, which is not among the tools", param)
    if name is None and asked not in (None, *_MODES):
        raise InvalidRequest(f"`{param}` is none of none, auto, required, or a tool", param)
    if not tools:
        if asked == "required":
            raise InvalidRequest(f"`{param}` needs tools", param)
        return None
    if name is not None:
        choice: Block = {"type": "tool", "name": upstream_name(name)}
    else:
        choice = {"type": _MODES[asked or "auto"]}
    one = legacy or member(members, "parallel_tool_calls", bool) is False
    if one and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice if one or asked is not None else None


def _max_tokens(request: Request, profile: AnthropicProfile) -> int:
    bounds = [n for n in (request.max_tokens, profile.max_output) if n is not None]
    if not bounds:
        raise InvalidRequest("`max_tokens` is required", "max_tokens", "missing_required_parameter")
    return min(bounds)


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16_384}
_MIN_BUDGET, _MAX_BUDGET = 1024, 32_768


def _effort(members: RawObject, profile: AnthropicProfile) -> str | None:
    """What the client asked for, checked."""
    asked: str | None = member(members, "reasoning_effort", str)
    if asked is not None and asked not in _EFFORTS:
        raise InvalidRequest(
            f"`reasoning_effort` is none of {', '.join(_EFFORTS)}", "reasoning_effort"
        )
    if profile.thinking == "none" and asked not in (None, "none"):
        raise _unsupported("`reasoning_effort`", "reasoning_effort")
    return asked


def _thinking(
    members: RawObject, profile: AnthropicProfile, max_tokens: int, unfit: bool
) -> Block | None:
    """How to think. A budget leaves a quarter of the output for the answer; without room for
    the smallest, and where the request is unfit for it, there is no thinking."""
    effort = _effort(members, profile)
    if effort is None or profile.thinking == "none":
        return None
    if effort == "none":
        on_unless_disabled = profile.thinking == "adaptive" and profile.disabled
        return {"type": "disabled"} if on_unless_disabled else None
    if profile.thinking == "adaptive":
        return {"type": "adaptive", "display": "summarized"}
    budget = min(_BUDGETS.get(effort, _MAX_BUDGET), max_tokens * 3 // 4)
    if budget < _MIN_BUDGET or unfit:
        return None
    return {"type": "enabled", "budget_tokens": budget}


class _Schema(msgspec.Struct):
    schema: Any = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


_ONLY_JSON = "Answer with one valid JSON object, and with no text before or after it."


def _output_config(members: RawObject, profile: AnthropicProfile) -> tuple[Block, str | None]:
    """Effort and format, and an instruction for the format that Anthropic doesn't enforce."""
    config: Block = {}
    effort = _effort(members, profile)
    if effort not in (None, "none") and profile.effort:
        wanted = _EFFORTS.index(effort)
        fit = [level for level in profile.effort if _EFFORTS.index(level) <= wanted]
        config["effort"] = fit[-1] if fit else profile.effort[0]
    form = member(members, "response_format", _Format)
    if form is None or form.type == "text":
        return config, None
    if form.type == "json_object":
        return config, _ONLY_JSON
    if form.type != "json_schema" or not profile.schemas:
        raise _unsupported(f"`{form.type}` format", "response_format")
    schema = form.json_schema.schema if form.json_schema is not None else None
    closed = closed_schema(schema, "response_format.json_schema.schema")
    config["format"] = {"type": "json_schema", "schema": closed}
    return config, None


def _sampling(members: RawObject, profile: AnthropicProfile, thinking: Block | None) -> Block:
    """The sampling parameters that the model takes; of temperature and `top_p` the first."""
    temperature = _in_range(members, "temperature", 2.0)
    top_p = _in_range(members, "top_p", 1.0)
    top_k = member(members, "top_k", int)
    if profile.sampling != "all":
        return {}
    if thinking is not None and thinking["type"] != "disabled":
        return {} if top_p is None else {"top_p": max(top_p, 0.95)}
    if temperature is not None and (temperature != 1.0 or top_p is None):
        top_p = None
    else:
        temperature = None
    return {
        "temperature": None if temperature is None else min(temperature, 1.0),
        "top_p": top_p,
        "top_k": top_k if top_k is not None and top_k > 0 else None,
    }


def _in_range(members: RawObject, name: str, most: float) -> float | None:
    value: float | None = member(members, name, float)
    if value is not None and not 0 <= value <= most:
        raise InvalidRequest(f"`{name}` must be between 0 and {most:g}", name)
    return value


_STOPS: Any = str | list[str]


def _stops(members: RawObject) -> list[str]:
    """Blank ones are refused upstream, and dropped here."""
    stop = member(members, "stop", _STOPS) or []
    return [text for text in ([stop] if isinstance(stop, str) else stop) if text.strip()]


def _user(members: RawObject) -> Block | None:
    metadata = member(members, "metadata", dict[str, str]) or {}
    user = member(members, "safety_identifier", str) or member(members, "user", str)
    user = user or metadata.get("user_id")
    return {"user_id": user} if user else None


def _tier(members: RawObject) -> str | None:
    tier = member(members, "service_tier", str)
    return tier and ("auto" if tier in ("auto", "priority", "scale") else "standard_only")


def _breakpoints(blocks: list[Block]) -> Iterator[None]:
    """Each cache breakpoint in blocks, turns and tools, and in the content of these."""
    for part in blocks:
        if "cache_control" in part:
            yield None
        if isinstance(part.get("content"), list):
            yield from _breakpoints(part["content"])
