"""What the mock upstream answers, and how the load tells a whole answer from a broken one.

Both sides import this module, so the check cannot drift from what is sent.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

#: Every piece of generated text carries this marker. Gateways may rewrite the
#: JSON around it, or merge chunks, but an answer with fewer markers was cut.
MARKER = " word"
#: Content chunks in a stream: with the role, finish and usage chunks and
#: `[DONE]` that is 52 events.
STREAM_WORDS = 48
#: Markers in the one message of a JSON answer.
JSON_WORDS = 8

JSON_TAIL = "}"
STREAM_TAIL = "data: [DONE]"

#: A prompt that says this gets one event a second. It travels in the prompt,
#: since every gateway relays prompts while model names are rewritten.
HOLD = re.compile(rb"hold for (\d+) events")
STREAMED = re.compile(rb'"stream"\s*:\s*true')

_ID = "chatcmpl-0123456789abcdef"
_CREATED = 1_750_000_000
_PROMPT_TOKENS = 12


@dataclass(frozen=True)
class Question:
    """A request body, and the two signs by which its answer is known to be whole."""

    body: bytes
    words: int
    tail: str


def ask(model: str) -> Question:
    """A question with a JSON answer."""
    return Question(_request(model, "Say hello."), JSON_WORDS, JSON_TAIL)


def ask_streamed(model: str) -> Question:
    """A question with a stream of 52 events as its answer."""
    return Question(_request(model, "Say hello.", stream=True), STREAM_WORDS, STREAM_TAIL)


def ask_held(model: str, events: int) -> Question:
    """A question whose answer trickles in, one event a second."""
    prompt = f"Please hold for {events} events."
    return Question(_request(model, prompt, stream=True), events, STREAM_TAIL)


def json_answer(words: int = JSON_WORDS) -> bytes:
    """The body of a JSON answer."""
    message = {"role": "assistant", "content": MARKER * words, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _compact(
        {
            "id": _ID,
            "object": "chat.completion",
            "created": _CREATED,
            "model": "mock",
            "choices": [choice],
            "usage": _usage(words),
        }
    )


def opening_event() -> bytes:
    """The first event of a stream: the role."""
    return _chunk({"role": "assistant", "content": ""})


def word_event() -> bytes:
    """One event with one word of content."""
    return _chunk({"content": MARKER})


def closing_events(words: int) -> list[bytes]:
    """The last events of a stream: finish reason, usage, and the end mark."""
    usage = {**_envelope(), "choices": [], "usage": _usage(words)}
    return [_chunk({}, finish="stop"), _event(_compact(usage)), _event(b"[DONE]")]


def stream_events(words: int = STREAM_WORDS) -> list[bytes]:
    """All events of a stream."""
    return [opening_event(), *[word_event()] * words, *closing_events(words)]


def message_answer(words: int = JSON_WORDS) -> bytes:
    """The body of a whole answer as Anthropic gives it."""
    return _compact(
        {
            **_message(),
            "content": [{"type": "text", "text": MARKER * words}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": _PROMPT_TOKENS, "output_tokens": words},
        }
    )


def message_opening_events() -> list[bytes]:
    """The first events of a stream as Anthropic gives it, before any text."""
    usage = {"input_tokens": _PROMPT_TOKENS, "output_tokens": 1}
    block = {"type": "text", "text": ""}
    return [
        _named("message_start", {"message": {**_message(), "content": [], "usage": usage}}),
        _named("content_block_start", {"index": 0, "content_block": block}),
    ]


def message_word_event() -> bytes:
    """One event with one word of content."""
    delta = {"type": "text_delta", "text": MARKER}
    return _named("content_block_delta", {"index": 0, "delta": delta})


def message_closing_events(words: int) -> list[bytes]:
    """The last events of such a stream."""
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        _named("content_block_stop", {"index": 0}),
        _named("message_delta", {"delta": delta, "usage": {"output_tokens": words}}),
        _named("message_stop", {}),
    ]


def _message() -> dict[str, Any]:
    return {
        "id": "msg_0123456789abcdef",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "stop_reason": None,
        "stop_sequence": None,
    }


def _named(name: str, members: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + _event(_compact({"type": name, **members}))


def _request(model: str, prompt: str, stream: bool = False) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 64,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return _compact(body)


def _usage(words: int) -> dict[str, int]:
    total = _PROMPT_TOKENS + words
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": words,
        "total_tokens": total,
    }


def _envelope() -> dict[str, Any]:
    return {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": "mock",
    }


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event(_compact({**_envelope(), "choices": [choice]}))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
