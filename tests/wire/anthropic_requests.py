"""Chat requests for Anthropic, and what becomes of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from anthropic.types import message_create_params
from pydantic import TypeAdapter

from sluice.wire.anthropic_profile import AnthropicProfile, profile_of
from sluice.wire.anthropic_request import to_messages
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request, check_chat, read_request

NEW = profile_of("claude-opus-5")
OLD = profile_of("claude-sonnet-4-5")
USER = {"role": "user", "content": "hi"}
USER_TURN = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
PNG = b"\x89PNG\r\n\x1a\n0000"
JPEG = b"\xff\xd8\xff\xe0000"
PDF = b"%PDF-1.7 000"


def request_of(**members: Any) -> Request:
    body = {"model": "alias", "messages": [USER], "max_tokens": 100, **members}
    request = read_request(json.dumps(body).encode(), "messages")
    check_chat(request)
    return request


def translated(profile: AnthropicProfile = NEW, /, **members: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(to_messages(request_of(**members), profile))
    validate(body)
    return body


def turns(messages: list[Any], profile: AnthropicProfile = NEW, **members: Any) -> list[Any]:
    out: list[Any] = translated(profile, messages=messages, **members)["messages"]
    return out


def refused(profile: AnthropicProfile = NEW, /, **members: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        to_messages(request_of(**members), profile)
    return caught.value.param, caught.value.code


_params: TypeAdapter[Any] = TypeAdapter(message_create_params.MessageCreateParamsNonStreaming)


def validate(body: dict[str, Any]) -> None:
    """By the official SDK's types, but for what only older API versions have."""
    gone = {"stream", "temperature", "top_p", "top_k"}
    _exhaust(_params.validate_python({k: v for k, v in body.items() if k not in gone}))


def _exhaust(value: Any) -> None:
    """Iterables are validated when they are read."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        for inner in value:
            _exhaust(inner)


def data_uri(content: bytes, label: str) -> str:
    return f"data:{label};base64,{base64.b64encode(content).decode()}"


def call(ident: str = "a", name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*several: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(several), **more}


def result(ident: str = "a", content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": content}


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}
