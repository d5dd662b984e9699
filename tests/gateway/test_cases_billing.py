"""Cases 82 and 83 over everything that is billed, in each form and over each kind of upstream."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from tests.gateway.test_idempotency import completions_stream, script_for, served
from tests.harness.gateway import ADMIN_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.twins import Twins, body_of
from tests.harness.upstream import Call, chunk


def rows_of(gateway: Gateway, team: str) -> list[dict[str, Any]]:
    """What the ledger has of a team."""
    path = f"/v1/usage/records?team_id={team}&limit=100"
    found: list[dict[str, Any]] = gateway.api("GET", path, key=ADMIN_KEY)["data"]
    return found


def new_key(gateway: Gateway, team: str) -> str:
    """The key of a new team, once the gateway knows it."""
    gateway.api("POST", "/admin/teams", {"name": team}, ADMIN_KEY)
    key = str(gateway.api("POST", f"/admin/teams/{team}/keys", {}, ADMIN_KEY)["key"])
    eventually(lambda: gateway.request("GET", "/v1/models", key=key).status_code == 200)
    return key


@pytest.fixture(scope="module")
def case_82(twins: Twins) -> tuple[str, str]:
    """A team of its own, and its key."""
    return "case-82", new_key(twins.one, "case-82")


@pytest.mark.parametrize(("name", "operation", "path", "stream"), served())
def test_case_82_a_request_is_one_row(
    twins: Twins, case_82: tuple[str, str], name: str, operation: str, path: str, stream: bool
) -> None:
    team, key = case_82
    marker = f"case82-{name}-{operation}-{stream}-end"
    legacy = operation == "completions" and stream
    twins.upstream.on(marker, completions_stream if legacy else script_for(operation))
    known = {row["request_id"] for row in rows_of(twins.one, team)}
    answer = twins.one.request("POST", path, body_of(operation, name, marker, stream), key)
    assert answer.status_code == 200, answer.text
    twins.one.record(answer.headers["x-request-id"])
    new = [row for row in rows_of(twins.one, team) if row["request_id"] not in known]
    assert [row["request_id"] for row in new] == [answer.headers["x-request-id"]]
    assert new[0]["endpoint"] == path.removeprefix("/v1/")


MOMENTS = [
    pytest.param(operation, path, stream, moment, id=f"{operation}-{moment}")
    for operation, path, stream in (
        ("embeddings", "/v1/embeddings", False),
        ("moderations", "/v1/moderations", False),
        ("messages", "/v1/messages", False),
        ("messages", "/v1/messages", True),
        ("responses", "/v1/responses", False),
        ("responses", "/v1/responses", True),
    )
    for moment in (("before-first-token", "mid-stream") if stream else ("before-headers",))
]


@pytest.mark.parametrize(("operation", "path", "stream", "moment"), MOMENTS)
def test_case_83_leaving_stops_the_upstream_and_is_billed_at_every_endpoint(
    twins: Twins, operation: str, path: str, stream: bool, moment: str
) -> None:
    """Chat and completions are in `test_cases_cancellation`."""
    gateway, marker = twins.one, f"case83-{operation}-{moment}-end"
    team = f"case-83-{operation}-{moment}"
    key = new_key(gateway, team)

    def script(call: Call) -> None:
        if moment != "before-headers":
            call.start_stream()
            call.event(chunk("m", {"role": "assistant", "content": ""}))
        if moment == "mid-stream":
            for _ in range(3):
                call.event(chunk("m", {"content": "word "}))
        call.wait_for_client_to_leave(10)

    twins.upstream.on(marker, script)
    text = json.dumps(body_of(operation, "compatible", marker, stream)).encode()
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-length: {len(text)}\r\n\r\n"
        )
        connection.sendall(head.encode() + text)
        call = twins.upstream.call_with(marker)
        if moment == "mid-stream":
            seen = b""
            while seen.count(b"word ") < 3:
                seen += connection.recv(65536)
        left = time.monotonic()
    eventually(lambda: call.closed_by_client_at, 5)
    assert call.closed_by_client_at is not None
    assert call.closed_by_client_at - left < 1.0
    rows = eventually(lambda: rows_of(gateway, team))
    assert [(row["status"], row["estimated"]) for row in rows] == [("cancelled", True)]
    assert rows[0]["input_tokens"] > 0
    # of a whole answer nothing was seen: it is billed by the time it ran, up to what was allowed
    if stream:
        assert (rows[0]["output_tokens"] > 0) == (moment == "mid-stream")
    assert rows[0]["output_tokens"] <= 50
