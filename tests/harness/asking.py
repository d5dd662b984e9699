"""Requests that tests send, one for each operation of the data plane."""

from __future__ import annotations

from typing import Any

import httpx

#: Path and prompt member of each operation.
ENDPOINTS = {
    "chat": ("/v1/chat/completions", "messages"),
    "completions": ("/v1/completions", "prompt"),
    "embeddings": ("/v1/embeddings", "input"),
}

#: Operation and mode of everything that is billed.
BILLABLE = [
    ("chat", False),
    ("chat", True),
    ("completions", False),
    ("completions", True),
    ("embeddings", False),
]


def body(operation: str, model: str, marker: str, stream: bool = False, **more: Any) -> Any:
    """A request body whose prompt is the marker."""
    _, member = ENDPOINTS[operation]
    prompt: Any = [{"role": "user", "content": marker}] if operation == "chat" else marker
    built: dict[str, Any] = {"model": model, member: prompt}
    if operation != "embeddings":
        built |= {"max_tokens": 20}
    if stream:
        built |= {"stream": True}
    return {**built, **more}


def post(
    http: httpx.Client, operation: str, model: str, marker: str, stream: bool = False, **more: Any
) -> httpx.Response:
    """Send it."""
    path, _ = ENDPOINTS[operation]
    return http.post(path, json=body(operation, model, marker, stream, **more))
