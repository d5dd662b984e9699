"""One agent's session, in the words of either SDK, and the transcript that it leaves.

`play` is the script; `OpenAIAgent` and `AnthropicAgent` each say it with their own SDK and keep
the conversation as applications do: what the model said goes back as it came.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import anthropic
import openai
from pydantic import BaseModel

SYSTEM = "You are a weather desk. Be brief."

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        "unit": {"type": "string", "enum": ["c", "f"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

#: Description and parameters by name.
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "get_weather": ("The weather of a city", WEATHER),
    "get_time": ("The time of day", NOTHING),
}

#: One red pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5E"
    "rkJggg=="
)

How = Literal["whole", "stream", "parse"]
TWO_WAYS: tuple[How, How] = ("whole", "stream")

TOO_LONG = "wave " * 3000


class Verdict(BaseModel):
    """What the model is asked for as JSON."""

    warmer: Literal["Oslo", "Rome"]
    sure: bool


@dataclass(frozen=True)
class Usage:
    """Tokens as a client reads them; input counts what was cached, output what was thought."""

    input: int
    cached: int
    output: int
    reasoning: int


@dataclass(frozen=True)
class Event:
    """What one request gave, in no vendor's words.

    Attributes:
        finish: stop, tools, length or refusal, or the class of an error.
        text: the answer, or why there is none.
        calls: names and arguments, of those that weren't cut.
        status: of the response.
        about_length: an error says, in its vendor's way, that the prompt is too long.
        ids: of the tool calls.
        request_id: the gateway's.
    """

    step: str
    finish: str
    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    usage: Usage | None = None
    status: int = 200
    about_length: bool = False
    ids: tuple[str, ...] = field(default=(), compare=False)
    request_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Wish:
    """How one answer is asked for.

    Attributes:
        how: in one piece, by the SDK's stream helper, or parsed into a `Verdict`.
        choice: auto, required, or a tool's name; None: no tools.
        effort: of thinking, which is then shown.
    """

    step: str
    max_tokens: int
    how: How = "whole"
    choice: str | None = None
    parallel: bool = True
    stop: str | None = None
    effort: Literal["low", "medium"] | None = None


class Agent(ABC):
    """A client with a conversation.

    Attributes:
        model: whom it asks.
        headers: of the last response.
    """

    model: str

    def __init__(self, strict: bool) -> None:
        """Args:
        strict: tools are called strictly. OpenAI's SDK then shows no answer that was cut.
        """
        self._strict = strict
        self._messages: list[Any] = []
        self.headers: Mapping[str, str] = {}

    def _note(self, response: Any) -> None:
        self.headers = response.headers

    @abstractmethod
    def say(self, text: str, image: bytes | None = None) -> None:
        """A user's turn."""

    @abstractmethod
    def give(self, results: Mapping[str, str]) -> None:
        """Results of tools, by the ids of their calls."""

    @abstractmethod
    def ask(self, wish: Wish) -> Event:
        """An answer, which becomes part of the conversation."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""

    def forget(self) -> None:
        """Take the last turn back."""
        self._messages.pop()


def play(agent: Agent) -> Iterator[Event]:
    """The session: tools in parallel with thinking, their results, an image, a JSON schema, a
    named tool, a stop sequence, a bound, a refusal, and prompts that are too long."""
    agent.say("Which is warmer now, Rome or Oslo?")
    called = agent.ask(Wish("calls", 300, "stream", "required", effort="medium"))
    yield called
    agent.give({ident: f"{3 + place} degrees" for place, ident in enumerate(called.ids)})
    yield agent.ask(Wish("quotes", 60, choice="auto", effort="medium"))
    agent.say("What is this?", PNG)
    yield (seen := agent.ask(Wish("image", 40, "stream")))
    if seen.status != 200:  # not every model sees
        agent.forget()
    agent.say("Sum it up as JSON.")
    yield agent.ask(Wish("json", 60, "parse", effort="low"))
    agent.say("What is the time?")
    called = agent.ask(Wish("named", 60, choice="get_time", parallel=False))
    yield called
    agent.give({ident: "noon" for ident in called.ids})
    yield agent.ask(Wish("stopped", 60, "stream", stop="THE END"))
    agent.say("Rome in one call, not Oslo")
    called = agent.ask(Wish("one call", 200, "stream", "required", parallel=False))
    yield called
    agent.give({ident: "dry" for ident in called.ids})
    yield agent.ask(Wish("cut", 5, "stream"))
    agent.say("This is forbidden.")
    for how in TWO_WAYS:
        event = agent.ask(Wish(f"refused {how}", 40, how))
        yield event
        if event.finish != "refusal":  # noise knows no rules
            agent.forget()
    agent.forget()
    agent.say(TOO_LONG)
    for how in TWO_WAYS:
        yield agent.ask(Wish(f"too long {how}", 40, how))


class OpenAIAgent(Agent):
    """By chat completions."""

    _FINISH: Mapping[str, str] = {
        "stop": "stop",
        "tool_calls": "tools",
        "length": "length",
        "content_filter": "refusal",
    }

    def __init__(self, url: str, key: str, model: str, strict: bool = True) -> None:
        super().__init__(strict)
        http = openai.DefaultHttpxClient(event_hooks={"response": [self._note]})
        self._sdk = openai.OpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http
        )
        self.model = model
        self._messages = [{"role": "system", "content": SYSTEM}]

    def close(self) -> None:
        self._sdk.close()

    def say(self, text: str, image: bytes | None = None) -> None:
        content: Any = text
        if image is not None:
            url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
            content = [
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            ]
        self._messages.append({"role": "user", "content": content})

    def give(self, results: Mapping[str, str]) -> None:
        for ident, text in results.items():
            self._messages.append({"role": "tool", "tool_call_id": ident, "content": text})

    def ask(self, wish: Wish) -> Event:
        try:
            answer = self._completion(wish)
        except openai.APIStatusError as error:
            return Event(
                wish.step,
                type(error).__name__,
                status=error.status_code,
                about_length=error.code == "context_length_exceeded",
                request_id=error.request_id or "",
            )
        return self._event(wish, answer)

    def _completion(self, wish: Wish) -> Any:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages,
            "max_completion_tokens": wish.max_tokens,
        }
        if wish.choice is not None:
            named = {"type": "function", "function": {"name": wish.choice}}
            request["tools"] = [
                {
                    "type": "function",
                    "function": {"name": name, "strict": self._strict, **described},
                }
                for name, (text, schema) in TOOLS.items()
                for described in [{"description": text, "parameters": schema}]
            ]
            request["tool_choice"] = named if wish.choice in TOOLS else wish.choice
            request["parallel_tool_calls"] = wish.parallel
        if wish.stop is not None:
            request["stop"] = [wish.stop]
        if wish.effort is not None:
            request["reasoning_effort"] = wish.effort
        if wish.how == "parse":
            return self._sdk.chat.completions.parse(**request, response_format=Verdict)
        if wish.how == "stream":
            options: Any = {"include_usage": True}
            with self._sdk.chat.completions.stream(**request, stream_options=options) as stream:
                stream.until_done()
                return stream.current_completion_snapshot
        return self._sdk.chat.completions.create(**request)

    def _function(self, name: str) -> dict[str, Any]:
        text, schema = TOOLS[name]
        function = {"name": name, "description": text, "parameters": schema}
        return {"type": "function", "function": {**function, "strict": self._strict}}

    def _event(self, wish: Wish, answer: Any) -> Event:
        (choice,) = answer.choices
        message = choice.message
        calls = [call for call in message.tool_calls or [] if _is_whole(call.function)]
        extra = message.model_extra or {}
        if choice.finish_reason != "content_filter":
            self._remember(message, calls, extra)
        text = message.content or message.refusal or ""
        if wish.how == "parse":
            text = message.parsed.model_dump_json()
        counts = answer.usage
        assert counts.total_tokens == counts.prompt_tokens + counts.completion_tokens
        cached = counts.prompt_tokens_details
        reasoning = counts.completion_tokens_details
        return Event(
            wish.step,
            self._FINISH[choice.finish_reason],
            text,
            extra.get("reasoning_content") or "",
            tuple((call.function.name, _same(call.function.arguments)) for call in calls),
            Usage(
                counts.prompt_tokens,
                (cached and cached.cached_tokens) or 0,
                counts.completion_tokens,
                (reasoning and reasoning.reasoning_tokens) or 0,
            ),
            ids=tuple(call.id for call in calls),
            request_id=self.headers["x-request-id"],
        )

    def _remember(self, message: Any, calls: Any, extra: Mapping[str, Any]) -> None:
        """With whatever else came, as applications do that know nothing of it."""
        said: dict[str, Any] = {"role": "assistant", "content": message.content}
        if calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in calls
            ]
        returned = ("reasoning_content", "reasoning", "thinking_blocks")
        said |= {name: extra[name] for name in returned if extra.get(name)}
        self._messages.append(said)


class AnthropicAgent(Agent):
    """By Messages."""

    _FINISH: Mapping[str, str] = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "tools",
        "max_tokens": "length",
        "refusal": "refusal",
    }

    def __init__(self, url: str, key: str, model: str, strict: bool = True) -> None:
        super().__init__(strict)
        http = anthropic.DefaultHttpxClient(event_hooks={"response": [self._note]})
        self._sdk = anthropic.Anthropic(
            base_url=url, auth_token=key, max_retries=0, http_client=http
        )
        self.model = model

    def close(self) -> None:
        self._sdk.close()

    def say(self, text: str, image: bytes | None = None) -> None:
        content: Any = text
        if image is not None:
            data = base64.b64encode(image).decode()
            source = {"type": "base64", "media_type": "image/png", "data": data}
            content = [{"type": "text", "text": text}, {"type": "image", "source": source}]
        self._messages.append({"role": "user", "content": content})

    def give(self, results: Mapping[str, str]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": ident, "content": text}
            for ident, text in results.items()
        ]
        self._messages.append({"role": "user", "content": content})

    def ask(self, wish: Wish) -> Event:
        try:
            answer = self._message(wish)
        except anthropic.APIStatusError as error:
            body: Any = error.body
            told = body["error"]
            too_long = told["message"].startswith("prompt is too long")
            return Event(
                wish.step,
                type(error).__name__,
                status=error.status_code,
                about_length=too_long and told["type"] == "invalid_request_error",
                request_id=error.request_id or "",
            )
        return self._event(wish, answer)

    def _message(self, wish: Wish) -> Any:
        request: dict[str, Any] = {
            "model": self.model,
            "system": SYSTEM,
            "messages": self._messages,
            "max_tokens": wish.max_tokens,
            "tools": [
                {"name": name, "description": text, "input_schema": schema, "strict": self._strict}
                for name, (text, schema) in TOOLS.items()
            ],
            "tool_choice": _anthropic_choice(wish),
        }
        if wish.stop is not None:
            request["stop_sequences"] = [wish.stop]
        if wish.effort is not None:
            request["thinking"] = {"type": "adaptive", "display": "summarized"}
            request["output_config"] = {"effort": wish.effort}
        if wish.how == "parse":
            return self._sdk.messages.parse(**request, output_format=Verdict)
        if wish.how == "stream":
            with self._sdk.messages.stream(**request) as stream:
                return stream.get_final_message()
        return self._sdk.messages.create(**request)

    def _event(self, wish: Wish, answer: Any) -> Event:
        assert answer.id.startswith("msg_")
        assert answer.model == self.model
        blocks = answer.content
        calls = [block for block in blocks if block.type == "tool_use"]
        if answer.stop_reason == "max_tokens":  # the last may be cut
            calls = [call for call in calls if set(call.input) == _required(call.name)]
            blocks = [block for block in blocks if block.type != "tool_use" or block in calls]
        text = "".join(block.text for block in blocks if block.type == "text")
        if answer.stop_reason == "refusal":
            text = answer.stop_details.explanation or ""
        else:
            self._messages.append({"role": "assistant", "content": blocks})
        if wish.how == "parse":
            text = answer.parsed_output.model_dump_json()
        counts = answer.usage
        cached = counts.cache_read_input_tokens or 0
        written = counts.cache_creation_input_tokens or 0
        details = counts.output_tokens_details
        return Event(
            wish.step,
            self._FINISH[answer.stop_reason],
            text,
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            tuple((call.name, _same(json.dumps(call.input))) for call in calls),
            Usage(
                counts.input_tokens + cached + written,
                cached,
                counts.output_tokens,
                (details and details.thinking_tokens) or 0,
            ),
            ids=tuple(call.id for call in calls),
            request_id=self.headers["request-id"],
        )


def _anthropic_choice(wish: Wish) -> dict[str, Any]:
    if wish.choice is None:
        return {"type": "none"}
    choice: dict[str, Any] = {"type": {"required": "any"}.get(wish.choice, wish.choice)}
    if wish.choice in TOOLS:
        choice = {"type": "tool", "name": wish.choice}
    return choice if wish.parallel else {**choice, "disable_parallel_tool_use": True}


def _same(arguments: str) -> str:
    """Arguments in the one spelling that can be compared."""
    return json.dumps(json.loads(arguments), sort_keys=True)


def _required(tool: str) -> set[str]:
    return set(TOOLS[tool][1]["required"])


def _is_whole(function: Any) -> bool:
    try:
        return set(json.loads(function.arguments)) == _required(function.name)
    except ValueError:
        return False
