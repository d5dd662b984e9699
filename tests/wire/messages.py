"""Messages requests to put together, and the chat requests that they become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_request import read_messages_request, to_chat
from sluice.wire.request import upstream_body

ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "hello"}],
}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}


def body(**members: Any) -> bytes:
    return json.dumps({**ASK, **members}).encode()


def chat(vllm: bool = False, reasoning: bool = True, **members: Any) -> dict[str, Any]:
    """The chat request for a Messages request, as it goes upstream."""
    request = to_chat(read_messages_request(body(**members)), vllm=vllm, reasoning=reasoning)
    sent: dict[str, Any] = json.loads(
        upstream_body(request, "up", "max_completion_tokens", {"include_usage": True})
    )
    return sent


def messages(*turns: tuple[str, Any], vllm: bool = False, **members: Any) -> list[dict[str, Any]]:
    asked = [{"role": role, "content": content} for role, content in turns]
    return list(chat(vllm, messages=asked, **members)["messages"])


def refused(vllm: bool = False, **members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(vllm, **members)
    return caught.value


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def use(id: str, name: str = "f", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}
