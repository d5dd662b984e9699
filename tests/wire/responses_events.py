"""Chat streams, and the Responses events that they become."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from sluice.wire.codec import Chained
from sluice.wire.responses_answer import Echo
from sluice.wire.responses_request import read_responses_request, to_chat
from sluice.wire.responses_stream import ResponsesFromChat
from sluice.wire.stream import DONE_EVENT, CompletionStream, StreamView
from tests.wire.pieces import split

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 5},
}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
TOOLS: Any = [
    FUNCTION,
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "agents",
        "description": "-",
        "tools": [{"type": "function", "name": "spawn"}],
    },
]

_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return event({"id": "c1", "created": 5, "model": "up", "choices": [choice]})


def call(index: int | None, call_id: str | None, name: str | None, text: str | None) -> Any:
    function = {"name": name, "arguments": text}
    found = {"index": index, "id": call_id, "type": "function", "function": function}
    return {name: value for name, value in found.items() if value is not None}


def ended(finish: str = "stop", usage: Any = USAGE) -> bytes:
    last = b"" if usage is None else event({"model": "up", "choices": [], "usage": usage})
    return chunk(finish) + last + DONE_EVENT


START = chunk(role="assistant", content="")
TEXT = START + chunk(content="na") + chunk(content="ïve 🚀") + ended()
CALLS = (
    START
    + chunk(tool_calls=[call(0, "c1", "weather", "")])
    + chunk(tool_calls=[call(0, None, None, '{"city":')])
    + chunk(tool_calls=[call(0, None, None, '"Paris"}')])
    + chunk(tool_calls=[call(1, "c2", "weather", "{}")])
    + ended("tool_calls")
)
MIXED = (
    START
    + chunk(reasoning="h")
    + chunk(reasoning="m")
    + chunk(content="see")
    + chunk(tool_calls=[call(0, "c1", "patch", '{"input":"***')])
    + chunk(tool_calls=[call(0, None, None, ' Begin"}'), call(1, "c2", "spawn", "")])
    + ended("tool_calls")
)


def echo(**request: Any) -> Echo:
    body = json.dumps({"model": "alias", "input": "hi", "tools": TOOLS, **request}).encode()
    return to_chat(read_responses_request(body)).echo


def client_stream(told: Echo | None = None) -> ResponsesFromChat:
    return ResponsesFromChat(told or echo(), "resp_0a", 5, "alias")


def chained(outer: ResponsesFromChat) -> Chained:
    return Chained(CompletionStream(StreamView("alias", include_usage=True)), outer)


def run(upstream: bytes, told: Echo | None = None, at: list[int] | None = None) -> bytes:
    """What the client gets of a complete answer."""
    stream = chained(client_stream(told))
    out = b"".join([stream.feed(piece) for piece in split(upstream, at or [])]) + stream.end()
    assert stream.done, stream.failure
    return out + stream.tail()


def events(out: bytes) -> list[dict[str, Any]]:
    """The events, checked against the SDK's own types; each has its name twice."""
    found = []
    for block in out.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        _events.validate_python(body)
        found.append(body)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


def kinds(out: bytes) -> list[str]:
    return [one["type"].removeprefix("response.") for one in events(out)]


def final(out: bytes) -> dict[str, Any]:
    response: dict[str, Any] = events(out)[-1]["response"]
    return response
