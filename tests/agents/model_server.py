"""A small deterministic model behind a vendor's door: one brain, two mouths.

`think` decides an answer from a conversation, whatever format it came in, and counts tokens by
words, so that both mouths report the same. `OpenAIMouth` and `AnthropicMouth` read requests as
strictly as the vendors do, because a wrong translation has to fail loudly, and speak the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.harness.upstream import Call, Upstream

#: Prompt tokens that fit.
CONTEXT = 2000
IMAGE_TOKENS = 50

Reason = Literal["stop", "stop_sequence", "tools", "length", "refusal"]


class Refused(Exception):
    """The vendor's 400.

    Attributes:
        code: OpenAI's; Anthropic has none.
    """

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def require(condition: object, message: str) -> None:
    """Refuse the request unless the condition holds."""
    if not condition:
        raise Refused(message)


def only(value: Any, names: str, where: str) -> dict[str, Any]:
    """An object without members but these."""
    require(isinstance(value, dict), f"{where}: must be an object")
    unknown = sorted(set(value) - set(names.split()))
    require(not unknown, f"{where}: extra inputs are not permitted: {unknown}")
    given: dict[str, Any] = value
    return given


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        images: media type and length in bytes of each.
        results: texts by the ids of their calls.
    """

    role: Literal["user", "assistant"]
    text: str = ""
    images: tuple[tuple[str, int], ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[tuple[str, str], ...] = ()

    def tokens(self) -> int:
        """How long it is; ids don't count, which differ between vendors."""
        said = [self.text, *(text for _, text in self.results)]
        said += [call.name + " " + json.dumps(call.arguments) for call in self.calls]
        return sum(len(part.split()) for part in said) + IMAGE_TOKENS * len(self.images)


@dataclass(frozen=True)
class Conversation:
    """What a request asks, in no vendor's words.

    Attributes:
        tools: names of those offered.
        choice: auto, none, required, or a tool's name.
        thinks: whether thinking is wanted, and may be shown.
    """

    system: str
    turns: tuple[Turn, ...]
    max_tokens: int
    tools: tuple[str, ...] = ()
    choice: str = "auto"
    parallel: bool = True
    schema: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    thinks: bool = False


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer: the input counts what was cached, the output what was thought."""

    input: int
    cached: int
    output: int
    reasoning: int


@dataclass(frozen=True)
class Said:
    """An answer."""

    reason: Reason
    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    stopped_by: str | None = None

    def tokens(self) -> int:
        """How long it is, thinking included."""
        return Turn(
            "assistant",
            f"{self.thinking} {self.text}",
            calls=tuple(ToolCall("", name, arguments) for name, arguments in self.calls),
        ).tokens()


class Overflow(Exception):
    """The prompt doesn't fit.

    Attributes:
        tokens: of the prompt.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


#: What this model won't talk about.
FORBIDDEN = "forbidden"
REFUSAL = "I will not speak of that."


def think(asked: Conversation) -> tuple[Said, Usage]:
    """The answer, and what it costs. What came before the last answer was in the cache.

    Raises:
        Overflow: the prompt is too long.
    """
    lengths = [len(asked.system.split()), *(turn.tokens() for turn in asked.turns)]
    if sum(lengths) > CONTEXT:
        raise Overflow(sum(lengths))
    said = _limited(_decide(asked), asked)
    answered = [place for place, turn in enumerate(asked.turns) if turn.role == "assistant"]
    cached = sum(lengths[: answered[-1] + 1]) if answered else 0
    reasoning = len(said.thinking.split())
    return said, Usage(sum(lengths), cached, said.tokens(), reasoning)


def _decide(asked: Conversation) -> Said:
    last = asked.turns[-1]
    thinking = ""
    if asked.thinks:
        thinking = "The results are here." if last.results else "Which tools will I need?"
    if FORBIDDEN in last.text:
        return Said("refusal", REFUSAL)
    if asked.schema is not None:
        return Said("stop", json.dumps(_instance(asked.schema)), thinking)
    if calls := _calls(asked, last):
        return Said("tools", "", thinking, calls)
    if last.results:
        made = {call.id: call for turn in asked.turns for call in turn.calls}
        quoted = [
            f"{made[ident].name} {json.dumps(made[ident].arguments)} said {text}."
            for ident, text in last.results
        ]
        return Said("stop", " ".join([*quoted, "THE END", "and more."]), thinking)
    if last.images:
        seen = [f"{kind} of {length} bytes" for kind, length in last.images]
        return Said("stop", f"I see {', '.join(seen)}.", thinking)
    return Said("stop", f"By order of '{asked.system}': you said '{last.text}'.", thinking)


def _calls(asked: Conversation, last: Turn) -> tuple[tuple[str, dict[str, Any]], ...]:
    """A named tool is called without arguments, another once for each city that is spoken of."""
    if asked.choice == "none" or not asked.tools:
        return ()
    if asked.choice in asked.tools:
        return ((asked.choice, {}),)
    if last.results and asked.choice == "auto":
        return ()
    cities = [city for city in ("Rome", "Oslo") if city in last.text]
    calls = tuple((asked.tools[0], {"city": city, "unit": "c"}) for city in cities)
    return calls if asked.parallel else calls[:1]


def _instance(schema: dict[str, Any]) -> Any:
    """The simplest value of a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kinds: dict[str, Any] = {"boolean": True, "integer": 7, "string": "words", "array": []}
    if schema.get("type") in kinds:
        return kinds[schema["type"]]
    return {name: _instance(inner) for name, inner in schema.get("properties", {}).items()}


def _limited(said: Said, asked: Conversation) -> Said:
    """Cut at the first stop sequence, and at the bound on tokens."""
    for stop in asked.stop:
        if stop in said.text:
            kept = said.text[: said.text.index(stop)]
            said = replace(said, text=kept, reason="stop_sequence", stopped_by=stop)
    room = asked.max_tokens - said.tokens()
    if room < 0 and not said.calls:
        words = said.text.split()
        kept = " ".join(words[: len(words) + room])
        return replace(said, text=kept, reason="length", stopped_by=None)
    return said


def pieces(text: str) -> Iterator[str]:
    """A text as a stream gives it: in pieces that end anywhere."""
    for start in range(0, len(text), 7):
        yield text[start : start + 7]


@dataclass
class Books:
    """What a model server has seen and reported.

    Attributes:
        reports: the usage of each answer, by the request id that came along.
        issued: ids of tool calls that it made.
        returned: ids that results came back under.
        refusals: what it found wrong with requests.
        thoughts: how many blocks of its own thinking came back.
    """

    reports: dict[str, Usage] = field(default_factory=dict)
    issued: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    thoughts: int = 0


class ModelServer:
    """Listens, and answers every request through a mouth."""

    def __init__(self) -> None:
        self.books = Books()
        self._upstream = Upstream()
        self._upstream.on("{", self._answer)
        self.url = self._upstream.url

    def close(self) -> None:
        """Stop to listen."""
        self._upstream.close()

    def _answer(self, call: Call) -> None:
        try:
            asked = self.read(call)
            said, usage = think(asked)
        except Overflow as overflow:
            self.refuse(call, self.too_long(overflow.tokens))
            return
        except Refused as refused:
            self.books.refusals.append(str(refused))
            self.refuse(call, refused)
            return
        self.books.reports[call.headers["x-request-id"]] = usage
        self.books.returned |= {ident for turn in asked.turns for ident, _ in turn.results}
        number = len(self.books.reports)
        calls = tuple(
            ToolCall(self.call_id(number, place), name, arguments)
            for place, (name, arguments) in enumerate(said.calls)
        )
        self.books.issued |= {made.id for made in calls}
        if call.json.get("stream"):
            call.start_stream()
            self.stream(call, said, calls, usage)
            call.end()
        else:
            call.respond(200, self.whole(call, said, calls, usage))

    def read(self, call: Call) -> Conversation:
        """The conversation in a request.

        Raises:
            Refused: the vendor would refuse it.
        """
        raise NotImplementedError

    def refuse(self, call: Call, refused: Refused) -> None:
        """The vendor's error response."""
        raise NotImplementedError

    def too_long(self, tokens: int) -> Refused:
        """The vendor's words for a prompt that doesn't fit."""
        raise NotImplementedError

    def call_id(self, number: int, place: int) -> str:
        """An id as the vendor makes them."""
        raise NotImplementedError

    def whole(
        self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage
    ) -> dict[str, Any]:
        """The answer's body."""
        raise NotImplementedError

    def stream(self, call: Call, said: Said, calls: tuple[ToolCall, ...], usage: Usage) -> None:
        """The answer's events."""
        raise NotImplementedError


def image_of(media_type: str, content: bytes) -> tuple[str, int]:
    """What the model sees of an image."""
    magic = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8"}
    require(media_type in magic, f"{media_type} is no image")
    require(content.startswith(magic[media_type]), f"the image is no {media_type}")
    return media_type, len(content)


def matched_results(turns: list[Turn], shown: str) -> None:
    """Refuse calls without results in the very next turn, and results of nothing."""
    for place, turn in enumerate(turns):
        after = turns[place + 1] if place + 1 < len(turns) else Turn("user")
        called = [call.id for call in turn.calls]
        require(len(set(called)) == len(called), "tool call ids must be unique")
        if place + 1 < len(turns) or called:
            results = [ident for ident, _ in after.results]
            require(sorted(called) == sorted(results), f"{shown} for {called}, found {results}")
