"""Requests that come as a list."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.batch.lines import LineRefused
from sluice.gateway.batch.request_list import request_lines

BODY = {"model": "m", "messages": []}


def lines(*requests: Any) -> list[Any]:
    given = [msgspec.Raw(json.dumps(each, indent=1).encode()) for each in requests]
    return [json.loads(each) for each in request_lines(given, Endpoint.CHAT)]


def test_what_is_left_out_is_filled_in() -> None:
    whole = {"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": BODY}
    assert lines(whole, {"body": BODY}, BODY, {**BODY, "custom_id": "y"}) == [
        whole,
        {"custom_id": "request-2", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
        {"custom_id": "request-3", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
        {"custom_id": "y", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
    ]


def test_each_is_one_line() -> None:
    given = [msgspec.Raw(b'{\r\n"body": {\n"model": "m"}\n}')]
    [line] = [each for each in request_lines(given, Endpoint.CHAT)]
    assert line.count(b"\n") == 1


def test_what_is_no_request() -> None:
    with pytest.raises(LineRefused) as refused:
        lines(BODY, 5)
    assert refused.value.line == 2
