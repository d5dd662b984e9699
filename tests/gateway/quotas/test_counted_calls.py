"""Calls that generate nothing are requests a minute, and wait for no slot, tokens or money."""

from __future__ import annotations

import json
import socket
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.gateway.quotas.conftest import Pair
from tests.harness.gateway import ADMIN_KEY
from tests.harness.limited import LimitedKey
from tests.harness.upstream import Call

NO_ID = "00000000-0000-0000-0000-000000000000"
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"good"}}\n'

#: A call of each kind, and its answer where no limit is in its way.
CALLS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "feedback": ("POST", "/v1/feedback", {"json": {"request_id": NO_ID, "score": 1}}, 404),
    "upload": (
        "POST",
        "/v1/files",
        {"data": {"purpose": "user_data"}, "files": {"file": b"x" * 300_000}},
        200,
    ),
    "files": ("GET", "/v1/files", {}, 200),
    "content": ("GET", "/v1/files/file-none/content", {}, 404),
    "delete": ("DELETE", "/v1/files/file-none", {}, 404),
    "batches": ("GET", "/v1/batches", {}, 200),
    "create": (
        "POST",
        "/v1/batches",
        {
            "json": {
                "input_file_id": "file-none",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        },
        404,
    ),
    "cancel": ("POST", "/v1/batches/batch_none/cancel", {}, 404),
    "lines": ("POST", "/v1/batch", {"content": LINE}, 200),
    "results": ("GET", "/v1/batch/batch_none/results", {}, 404),
}


def call(limited: Pair, key: LimitedKey, name: str) -> httpx.Response:
    """Make a call of a kind."""
    method, path, given, _ = CALLS[name]
    headers = {"authorization": f"Bearer {key.secret}"}
    return httpx.request(method, limited.one.url + path, headers=headers, timeout=30, **given)


@pytest.mark.parametrize("name", CALLS)
def test_each_counts_as_a_request_of_the_minute(limited: Pair, name: str) -> None:
    key = limited.tenants.key(requests_per_minute=1)
    let_in = call(limited, key, name)
    assert let_in.status_code == CALLS[name][3]
    assert let_in.headers["x-ratelimit-limit-requests"] == "1"
    assert let_in.headers["x-ratelimit-remaining-requests"] == "0"
    refused = call(limited, key, name)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    body = {"model": "good", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    assert limited.post("/v1/chat/completions", body, key.secret).status_code == 429


@pytest.mark.parametrize("level", ["organisation", "team"])
def test_every_levels_requests_count(limited: Pair, level: str) -> None:
    one = {"requests_per_minute": 1}
    organisation = limited.tenants.organisation(**one if level == "organisation" else {})
    team = limited.tenants.team(organisation, **one if level == "team" else {})
    key = limited.tenants.key(team)
    assert call(limited, key, "files").status_code == 200
    assert call(limited, key, "files").status_code == 429


def test_neither_slots_nor_tokens_nor_money_are_in_the_way(limited: Pair) -> None:
    key = limited.tenants.key(max_concurrent=1, tokens_per_minute=1_000)
    marker = f"m{uuid4().hex}"
    limited.upstream.on(marker, Call.wait_for_client_to_leave)
    body = {
        "model": "good",
        "max_tokens": 600,
        "messages": [{"role": "user", "content": marker}],
    }
    text = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key.secret}"
        f"\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", limited.one.port), 5) as connection:
        connection.sendall(head.encode() + text)
        limited.upstream.call_with(marker)  # it has the slot, and most of the minute's tokens
        limited.tenants.change("key", key.id, budgets=[{"period": "day", "limit_usd": "0"}])
        for name, (_, _, _, status) in CALLS.items():
            assert call(limited, key, name).status_code == status, name
        assert limited.post("/v1/chat/completions", body, key.secret).status_code == 429


def test_who_has_no_limits_has_no_headers(limited: Pair) -> None:
    unlimited = call(limited, limited.tenants.key(), "files")
    assert unlimited.status_code == 200
    assert not [name for name in unlimited.headers if name.startswith("x-ratelimit")]
    administrator = LimitedKey("", ADMIN_KEY, "", "")
    assert call(limited, administrator, "files").status_code == 403
