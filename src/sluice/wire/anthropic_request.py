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

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.wire.anthropic_answer import NameMap, upstream_id, upstream_name
from sluice.wire.anthropic_content import (
    Block,
    Part,
    content_blocks,
    is_thinking,
    marked,
    text_block,
    thinking_blocks,
)
from sluice.wire.anthropic_profile import AnthropicProfile, unsupported
from sluice.wire.anthropic_schema import closed_schema
from sluice.wire.anthropic_tools import (
    Function,
    Tool,
    offered_functions,
    tool_block,
    tool_blocks,
    tool_choice,
)
from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import MalformedJSON, RawObject, decode_object, encode
from sluice.wire.request import Request, member

MAX_BREAKPOINTS = 4

#: Have no counterpart and don't change what the answer means; gone without a word.
# fmt: off
DROPPED = frozenset((
    "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "seed",
    "store", "stream_options", "verbosity"
))
# fmt: on

# fmt: off
_TRANSLATED = frozenset((
    "max_completion_tokens", "max_tokens", "messages", "metadata", "model", "parallel_tool_calls",
    "reasoning_effort", "response_format", "safety_identifier", "service_tier", "stop", "stream",
    "temperature", "tool_choice", "tools", "top_k", "top_p", "user"
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


class _Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[Tool] | None = None
    tool_call_id: str | None = None
    thinking_blocks: list[RawObject] | None = None
    cache_control: Block | None = None

    def blocks(self, where: str) -> list[Block]:
        files = self.role in ("user", "tool")
        return content_blocks(self.content, files, f"{where}.content")


def names_of(request: Request) -> NameMap:
    """What the answer's codec needs to know of the request."""
    offered = offered_functions(request)
    client = {upstream_name(tool.name): tool.name for tool in offered}
    return NameMap({theirs: ours for theirs, ours in client.items() if theirs != ours})


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
    tools = tool_blocks(request, profile)
    choice = tool_choice(members, tools)
    if not tools and talk.called:
        tools = {name: tool_block(Function(name), profile) for name in dict.fromkeys(talk.called)}
        choice = {"type": "none"}
    forced = choice is not None and choice["type"] in ("any", "tool")
    body: Block = {"model": profile.model, "max_tokens": _max_tokens(request, profile)}
    thinking = _thinking(members, profile, body["max_tokens"], forced or talk.forgot_thinking)
    config, instruction = _output_config(members, profile)
    system = [*talk.system, *([text_block(instruction)] if instruction else [])]
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
            raise unsupported(f"`{name}`", name)


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
            blocks = marked(message.blocks(where), message.cache_control)
            if self._turns:
                self._append("system", blocks)
            else:
                self.system += blocks
        elif role == "user":
            self._append("user", marked(message.blocks(where), message.cache_control))
        elif role == "assistant":
            self._assistant(message, where)
        elif role == "tool":
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
            out[0]["content"] = [text_block("(start)")]
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
            self.forgot_thinking = not is_thinking(last["content"][0])
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
        blocks = list(thinking_blocks(message.thinking_blocks or (), where))
        text = message.blocks(where)
        if message.refusal:
            text.append(text_block(message.refusal))
        calls = [
            self._call(call.function, call.id, f"{where}.tool_calls[{number}]")
            for number, call in enumerate(message.tool_calls or [])
        ]
        self._append("assistant", marked([*blocks, *text, *calls], message.cache_control))

    def _call(self, function: Function | None, name: str | None, where: str) -> Block:
        if function is None:
            raise unsupported("tool calls but those of functions", where)
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
            where += ".function.arguments"
            raise InvalidRequest(f"`{where}` is no JSON object: {error}", where) from None
        return {"type": "tool_use", "id": ident, "name": self.called[-1], "input": arguments}

    def _result(self, message: _Message, where: str) -> Block:
        name = message.tool_call_id
        if not name or name not in self._open:
            what = f"`{name}` answers no tool call of the turn before"
            raise InvalidRequest(what, f"{where}.tool_call_id")
        block: Block = {"type": "tool_result", "tool_use_id": self._open.pop(name)}
        if content := message.blocks(where):
            block["content"] = content
        if message.cache_control is not None:
            block["cache_control"] = message.cache_control
        return block


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
        raise unsupported("`reasoning_effort`", "reasoning_effort")
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
        raise unsupported(f"`{form.type}` format", "response_format")
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
