"""The text of answers, whole and streamed, of every endpoint that has any."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.learning.answer_text import MAX_BYTES, answer_text


def events(*bodies: dict[str, Any]) -> bytes:
    return b": keep-alive\n\n" + b"".join(
        b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies
    )


WHOLE: list[tuple[Endpoint, dict[str, Any]]] = [
    (Endpoint.CHAT, {"choices": [{"message": {"content": "Gr\u00fc\u00dfe"}}]}),
    (
        Endpoint.MESSAGES,
        {"content": [{"type": "text", "text": "Gr\u00fc"}, {"type": "text", "text": "\u00dfe"}]},
    ),
    (
        Endpoint.RESPONSES,
        {
            "output": [
                {"type": "reasoning", "content": [{"text": "hm"}]},
                {
                    "type": "message",
                    "content": [{"type": "output_text", "text": "Gr\u00fc\u00dfe"}],
                },
            ]
        },
    ),
]

STREAMED: list[tuple[Endpoint, bytes]] = [
    (
        Endpoint.CHAT,
        events(
            {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
            {"choices": [{"index": 0, "delta": {"content": "Gr\u00fc"}}]},
            {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
            {"choices": [{"index": 0, "delta": {"content": "\u00dfe"}}]},
            {"choices": [], "usage": {}},
        )
        + b"data: [DONE]\n\n",
    ),
    (
        Endpoint.MESSAGES,
        events(
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Gr\u00fc"}},
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "\u00dfe"}},
            {"type": "message_stop"},
        ),
    ),
    (
        Endpoint.RESPONSES,
        events(
            {"type": "response.output_text.delta", "delta": "Gr\u00fc\u00dfe"},
            {"type": "response.completed", "response": {}},
        ),
    ),
]


@pytest.mark.parametrize(("endpoint", "body"), WHOLE)
def test_whole(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert answer_text(endpoint, json.dumps(body).encode(), streamed=False) == "Gr\u00fc\u00dfe"


@pytest.mark.parametrize(("endpoint", "sent"), STREAMED)
def test_streamed(endpoint: Endpoint, sent: bytes) -> None:
    assert answer_text(endpoint, sent, streamed=True) == "Gr\u00fc\u00dfe"


TOOLS: dict[str, Any] = {"choices": [{"message": {"content": None, "tool_calls": []}}]}


@pytest.mark.parametrize(
    ("endpoint", "sent", "streamed"),
    [
        (Endpoint.CHAT, json.dumps(TOOLS).encode(), False),
        (Endpoint.CHAT, b'{"choices": []}', False),
        (Endpoint.CHAT, b"[1]", False),
        (Endpoint.CHAT, b"{", False),
        (Endpoint.CHAT, b"data: {\n\n", True),
        (Endpoint.CHAT, b"data: 5\n\n", True),
        (Endpoint.CHAT, b"", True),
        (Endpoint.EMBEDDINGS, b'{"data": []}', False),
        (Endpoint.CHAT, b"[" * 100_000, False),
        (Endpoint.CHAT, b" " * (MAX_BYTES + 1), False),
    ],
)
def test_no_text(endpoint: Endpoint, sent: bytes, streamed: bool) -> None:
    assert answer_text(endpoint, sent, streamed) is None
