"""Clients that leave and upstreams that stall: cases 73 and 83, and timeouts of each phase."""

from __future__ import annotations

import json
import socket
import time
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.harness.asking import BILLABLE, ENDPOINTS, body, post
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Call, Upstream, chunk

KINDS = ["vllm-alias", "openai-alias"]


def open_request(gateway: Gateway, operation: str, request: dict[str, Any]) -> socket.socket:
    """Send a request on a bare socket, so that the client can leave as abruptly as it likes."""
    text = json.dumps(request).encode()
    connection = socket.create_connection(("127.0.0.1", gateway.port))
    head = (
        f"POST {ENDPOINTS[operation][0]} HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {TEAM_KEY}\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    connection.sendall(head.encode() + text)
    return connection


class Abandoned:
    """Finds the record of a request that its client is going to leave, whose id it never learns.

    It is one that was not there before. Its time alone would not tell: gateways go by Redis's
    clock, which they know as well as an answer of Redis is quick.
    """

    def __init__(self, gateway: Gateway, model: str) -> None:
        """Before the request is sent."""
        self._gateway = gateway
        self._model = model
        self._since = time.time() - 1
        self._known = {row["request_id"] for row in self._rows()}

    def record(self) -> dict[str, Any]:
        """The record, once it is there."""

        def found() -> dict[str, Any] | None:
            new = (row for row in self._rows() if row["request_id"] not in self._known)
            return next(new, None)

        return eventually(found)

    def _rows(self) -> list[dict[str, Any]]:
        rows = self._gateway.api("GET", "/v1/usage/records?limit=50")["data"]
        return [
            row
            for row in rows
            if (row["model"], row["status"]) == (self._model, "cancelled")
            and datetime.fromisoformat(row["time"]).timestamp() >= self._since
        ]


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
@pytest.mark.parametrize("moment", ["before-headers", "before-first-token", "mid-stream"])
def test_case_83_a_client_that_leaves_stops_the_upstream_and_is_billed(
    gateway: Gateway, upstream: Upstream, model: str, operation: str, stream: bool, moment: str
) -> None:
    if not stream and moment != "before-headers":
        return  # a whole answer has no later moment
    marker = f"case83-{model}-{operation}-{stream}-{moment}-end"

    def script(call: Call) -> None:
        if moment != "before-headers":
            call.start_stream()
            role = chunk("m", {"role": "assistant", "content": ""})
            call.event(role if operation == "chat" else {"choices": [{"index": 0, "text": ""}]})
        if moment == "mid-stream":
            for _ in range(3):
                words = chunk("m", {"content": "word "})
                call.event(
                    words if operation == "chat" else {"choices": [{"index": 0, "text": "word "}]}
                )
        call.wait_for_client_to_leave(10)

    upstream.on(marker, script)
    abandoned = Abandoned(gateway, model)
    with open_request(gateway, operation, body(operation, model, marker, stream)) as connection:
        call = upstream.call_with(marker)
        if moment == "mid-stream":
            seen = b""
            while seen.count(b"word ") < 3:
                seen += connection.recv(65536)
        left = time.monotonic()
    eventually(lambda: call.closed_by_client_at, 5)
    assert call.closed_by_client_at is not None
    assert call.closed_by_client_at - left < 1.0
    record = abandoned.record()
    assert record["error_code"] == "client_closed_request"
    assert record["estimated"] is True
    assert record["input_tokens"] > 0
    if stream:
        assert (record["output_tokens"] > 0) == (moment == "mid-stream")
    assert record["output_tokens"] <= 20
    eventually(lambda: gateway.metric("gw_in_flight", model=model) == 0)


def test_a_whole_answer_that_is_abandoned_is_billed_by_the_usual_rate(
    gateway: Gateway, http: httpx.Client
) -> None:
    post(http, "chat", "slow", "teach the rate")
    abandoned = Abandoned(gateway, "slow")
    with open_request(gateway, "chat", body("chat", "slow", "x", max_tokens=20)):
        eventually(lambda: gateway.metric("gw_in_flight", model="slow") == 1)
        started = time.monotonic()
        eventually(lambda: time.monotonic() - started > 0.5)
    record = abandoned.record()
    assert 0 < record["output_tokens"] <= 20


def test_vllm_streams_that_are_abandoned_are_billed_exactly(
    gateway: Gateway, upstream: Upstream
) -> None:
    """vLLM reports usage on every chunk when asked to."""

    def script(call: Call) -> None:
        assert call.json["stream_options"]["continuous_usage_stats"] is True
        call.start_stream()
        usage = {"prompt_tokens": 123, "completion_tokens": 5, "total_tokens": 128}
        call.event(chunk("m", {"content": "several tokens in one chunk"}, usage=usage))
        call.wait_for_client_to_leave(10)

    upstream.on("billed-exactly", script)
    abandoned = Abandoned(gateway, "vllm-alias")
    with open_request(
        gateway, "chat", body("chat", "vllm-alias", "billed-exactly", True)
    ) as connection:
        seen = b""
        while b"several" not in seen:
            seen += connection.recv(65536)
        assert b'"usage"' not in seen
    record = abandoned.record()
    assert (record["input_tokens"], record["output_tokens"]) == (123, 5)
    assert record["estimated"] is False


@pytest.mark.parametrize("operation", ENDPOINTS)
def test_a_client_that_leaves_while_sending_its_body_costs_nothing(
    gateway: Gateway, operation: str
) -> None:
    refused = gateway.metric("gw_requests_total", outcome="cancelled", model="other")
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(
            f"POST {ENDPOINTS[operation][0]} HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {TEAM_KEY}\r\ncontent-length: 1000\r\n\r\n{{".encode()
        )
    eventually(
        lambda: gateway.metric("gw_requests_total", outcome="cancelled", model="other") > refused
    )


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
def test_case_73_an_upstream_that_never_answers_is_a_504_and_frees_its_slot(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, operation: str, stream: bool
) -> None:
    marker = f"case73-{operation}-{stream}-end"
    upstream.on(marker, lambda call: call.wait_for_client_to_leave(10) and None)
    started = time.monotonic()
    response = post(http, operation, "impatient", marker, stream)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "upstream_timeout"
    assert time.monotonic() - started < 5
    record = gateway.record(response.headers["x-request-id"])
    assert (record["status"], record["attempts"]) == ("error", 1)
    eventually(lambda: gateway.metric("gw_in_flight", model="impatient") == 0)
    calls = upstream.calls_with(marker)
    eventually(lambda: all(call.closed_by_client_at for call in calls))


@pytest.mark.parametrize("how", ["pause", "forever"])
def test_a_stream_that_stalls_or_never_ends_is_ended_with_an_error(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, how: str
) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("m", {"content": "word"}))
        deadline = time.monotonic() + 8
        while how == "forever" and time.monotonic() < deadline:
            call.event(chunk("m", {"content": "word"}))
            time.sleep(0.1)
        call.wait_for_client_to_leave(10)

    upstream.on(f"stall-{how}-end", script)
    response = post(http, "chat", "impatient", f"stall-{how}-end", stream=True)
    events = [part for part in response.text.split("\n\n") if part.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "upstream_timeout"
    record = gateway.record(response.headers["x-request-id"])
    assert record["status"] == "error"
    assert record["output_tokens"] > 0


@pytest.mark.slow
def test_many_abandoned_streams_leave_nothing_behind(gateway: Gateway, upstream: Upstream) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("m", {"content": "word"}))
        call.wait_for_client_to_leave(20)

    upstream.on("abandoned", script)
    connections = [
        open_request(gateway, "chat", body("chat", "openai-alias", "abandoned", True))
        for _ in range(100)
    ]
    eventually(lambda: len(upstream.calls_with("abandoned")) == 100)
    for connection in connections:
        connection.close()
    calls = upstream.calls_with("abandoned")
    eventually(lambda: all(call.closed_by_client_at for call in calls), 10)
    eventually(lambda: gateway.metric("gw_in_flight", model="openai-alias") == 0)
