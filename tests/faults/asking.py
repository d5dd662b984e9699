"""Requests of every client format, what came back, and what the official SDKs make of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import openai

from tests.harness.gateway import TEAM_KEY, Gateway

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}
HEADERS = {"authorization": f"Bearer {TEAM_KEY}", "content-type": "application/json"}


def body(
    endpoint: str, model: str, marker: str, stream: bool = False, **more: Any
) -> dict[str, Any]:
    """A request body whose prompt is the marker."""
    built: dict[str, Any] = {"model": model}
    if endpoint in ("chat", "messages"):
        built |= {"messages": [{"role": "user", "content": marker}], "max_tokens": 50}
    elif endpoint == "responses":
        built |= {"input": marker, "max_output_tokens": 50}
    else:
        built |= {"input": marker}
    return {**built, **({"stream": True} if stream else {}), **more}


@dataclass(frozen=True)
class Seen:
    """A response as its bytes came."""

    endpoint: str
    stream: bool
    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def attempts(self) -> list[str]:
        """The upstream calls that the caller is told of."""
        return self.headers["x-attempts"].split(", ") if "x-attempts" in self.headers else []

    def events(self) -> list[tuple[str, Any]]:
        """The stream's events: name (empty where there is none) and data."""
        parts = (part for part in self.content.decode().split("\n\n") if part)
        found = []
        for part in parts:
            lines = dict(line.split(": ", 1) for line in part.split("\n") if line[0] != ":")
            if "data" in lines:
                text = lines["data"]
                data = text if text == "[DONE]" else json.loads(text)
                found.append((lines.get("event", ""), data))
        return found


def ask(
    gateway: Gateway, endpoint: str, model: str, marker: str, stream: bool = False, **more: Any
) -> Seen:
    """Send a request and hear it out."""
    sent = body(endpoint, model, marker, stream, **more)
    with httpx.Client(timeout=30) as client:
        response = client.post(gateway.url + PATHS[endpoint], json=sent, headers=HEADERS)
    return Seen(endpoint, stream, response.status_code, response.headers, response.content)


def raised_by_sdk(seen: Seen) -> BaseException:
    """What the official SDK of the format raises when it gets this response, byte for byte."""
    try:
        answer = _by_anthropic(seen) if seen.endpoint == "messages" else _by_openai(seen)
        if seen.stream:
            list(answer)
    except (openai.APIError, anthropic.APIError) as error:
        return error
    raise AssertionError(f"the SDK took it for a success: {seen.content!r}")


def _by_anthropic(seen: Seen) -> Any:
    sdk = anthropic.Anthropic(
        base_url="http://gateway", api_key="any", max_retries=0, http_client=_replaying(seen)
    )
    create: Any = sdk.messages.create
    return create(**body(seen.endpoint, "m", "again", seen.stream))


def _by_openai(seen: Seen) -> Any:
    sdk = openai.OpenAI(
        base_url="http://gateway/v1", api_key="any", max_retries=0, http_client=_replaying(seen)
    )
    creates: dict[str, Any] = {
        "chat": sdk.chat.completions.create,
        "responses": sdk.responses.create,
        "embeddings": sdk.embeddings.create,
    }
    return creates[seen.endpoint](**body(seen.endpoint, "m", "again", seen.stream))


def _replaying(seen: Seen) -> httpx2.Client:
    headers = [(name, value) for name, value in seen.headers.items() if name != "content-length"]

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(seen.status, headers=headers, content=seen.content)

    return httpx2.Client(transport=httpx2.MockTransport(respond))
