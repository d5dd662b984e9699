"""Breakers and cooldowns as callers meet them: case 76, and who may open what."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from tests.faults import speech
from tests.faults.asking import PATHS, Seen, ask, body
from tests.faults.models import BUDGET, MAX_COOLDOWN_SECONDS, MIN_CALLS, OPEN_SECONDS
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Call, Upstream

pytestmark = pytest.mark.slow

CLOSED, OPEN = 0, 2


def state(gateway: Gateway, name: str, kind: str = "openai") -> float:
    """Where a deployment's breaker stands; closed before it first moves."""
    return gateway.metric("gw_breaker_state", deployment=f"{kind}/at-{name}")


def fail_until_open(gateway: Gateway, upstream: Upstream, name: str) -> Seen:
    """Requests that fail until the breaker opens: the first refusal."""
    upstream.on(f"break-{name}", speech.refusing(500))
    for _ in range(MIN_CALLS):
        ask(gateway, "chat", name, f"break-{name}")
        if state(gateway, name) == OPEN:
            return ask(gateway, "chat", name, "while-open")
    raise AssertionError("the breaker never opened")


def test_case_76_one_failed_request_opens_nothing(gateway: Gateway, scripted: Upstream) -> None:
    scripted.on("fails-once", speech.refusing(500))
    failed = ask(gateway, "chat", "one-failure", "fails-once")
    assert (failed.status, len(failed.attempts)) == (502, BUDGET)
    assert state(gateway, "one-failure") == CLOSED
    assert ask(gateway, "chat", "one-failure", "works").status == 200


@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses"])
def test_an_open_breaker_refuses_without_a_call(
    gateway: Gateway, scripted: Upstream, endpoint: str
) -> None:
    eventually(lambda: state(gateway, "opens") == CLOSED or _closes(gateway, "opens"))
    refused = fail_until_open(gateway, scripted, "opens")
    assert refused.status == 503
    marker = f"refused-{endpoint}-end"
    seen = ask(gateway, endpoint, "opens", marker)
    assert seen.status == (529 if endpoint == "messages" else 503)
    assert 0 < int(seen.headers["retry-after"]) <= OPEN_SECONDS + 1
    error = seen.json["error"]
    if endpoint == "messages":
        assert error["type"] == "overloaded_error"
    else:
        assert error["code"] == "server_is_overloaded"
    assert seen.attempts == []
    assert scripted.calls_with(marker) == []
    path = f"/v1/usage/records?request_id={seen.request_id}"
    assert gateway.api("GET", path, key=ADMIN_KEY)["data"] == []


def _closes(gateway: Gateway, name: str) -> bool:
    return ask(gateway, "chat", name, "works").status == 200


def test_a_probe_that_succeeds_closes_the_breaker(gateway: Gateway, scripted: Upstream) -> None:
    fail_until_open(gateway, scripted, "probe-closes")
    eventually(lambda: _closes(gateway, "probe-closes"))
    assert state(gateway, "probe-closes") == CLOSED
    assert len(scripted.calls_with("at-probe-closes")) == MIN_CALLS + 1


def test_a_probe_that_fails_opens_it_again(gateway: Gateway, scripted: Upstream) -> None:
    fail_until_open(gateway, scripted, "probe-fails")
    probed = eventually(lambda: _unless_refused(gateway, "probe-fails", "break-probe-fails"))
    assert (probed.status, len(probed.attempts)) == (502, 1)
    assert state(gateway, "probe-fails") == OPEN
    assert ask(gateway, "chat", "probe-fails", "works").status == 503


def _unless_refused(gateway: Gateway, name: str, marker: str) -> Seen | None:
    seen = ask(gateway, "chat", name, marker)
    return None if seen.status == 503 else seen


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422, 501])
def test_what_callers_do_wrong_opens_nothing(
    gateway: Gateway, scripted: Upstream, status: int
) -> None:
    scripted.on(f"wrong-{status}-end", speech.refusing(status))
    for _ in range(2 * MIN_CALLS):
        extra = {"disable_fallbacks": True}  # one call each
        ask(gateway, "chat", "callers-faults", f"wrong-{status}-end", **extra)
    assert len(scripted.calls_with(f"wrong-{status}-end")) == 2 * MIN_CALLS
    assert state(gateway, "callers-faults") == CLOSED
    assert ask(gateway, "chat", "callers-faults", "works").status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_callers_that_leave_open_nothing(
    gateway: Gateway, scripted: Upstream, stream: bool
) -> None:
    marker = f"leaver-{stream}-end"
    scripted.on(marker, speech.after_words(speech.stall) if stream else speech.stall)
    for number in range(2 * MIN_CALLS):
        with _open_request(gateway, "leavers", marker, stream) as connection:
            eventually(lambda wanted=number + 1: len(scripted.calls_with(marker)) == wanted)  # type: ignore[misc]
            if stream:
                connection.recv(100)
    calls = scripted.calls_with(marker)
    eventually(lambda: all(call.closed_by_client_at for call in calls))
    assert state(gateway, "leavers") == CLOSED
    assert ask(gateway, "chat", "leavers", "works").status == 200


def _open_request(gateway: Gateway, model: str, marker: str, stream: bool) -> socket.socket:
    text = json.dumps(body("chat", model, marker, stream)).encode()
    head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TEAM_KEY}\r\n"
    connection = socket.create_connection(("127.0.0.1", gateway.port))
    connection.sendall(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text)
    return connection


def test_limits_open_nothing(gateway: Gateway, scripted: Upstream) -> None:
    scripted.on("limit-without-wait", speech.refusing(429))
    for _ in range(MIN_CALLS):
        assert ask(gateway, "chat", "limited-no-breaker", "limit-without-wait").status == 429
    assert state(gateway, "limited-no-breaker") == CLOSED
    assert ask(gateway, "chat", "limited-no-breaker", "works").status == 200


def test_streams_that_break_open_it(gateway: Gateway, scripted: Upstream) -> None:
    scripted.on("broken-streams-marker", speech.after_words(speech.reset))
    for _ in range(MIN_CALLS):
        seen = ask(gateway, "chat", "broken-streams", "broken-streams-marker", stream=True)
        assert seen.status == 200
    assert state(gateway, "broken-streams") == OPEN


def test_a_broken_deployment_is_passed_over(gateway: Gateway, scripted: Upstream) -> None:
    def script(call: Call) -> None:
        broken = call.json["model"] == "at-one-broken-first"
        (speech.refusing(500) if broken else speech.answer)(call)

    scripted.on("one-of-two-breaks", script)
    answers = [ask(gateway, "chat", "one-broken", "one-of-two-breaks") for _ in range(8)]
    assert {answer.status for answer in answers} == {200}
    calls = scripted.calls_with("at-one-broken-first")
    assert len(calls) == MIN_CALLS
    assert len(answers[-1].attempts) == 1


@pytest.mark.parametrize(
    ("name", "waits", "kept"), [("longer-later", (5, 40), 40), ("shorter-later", (40, 5), 40)]
)
def test_case_76_of_two_waits_the_longer_is_kept(
    gateway: Gateway, scripted: Upstream, name: str, waits: tuple[int, int], kept: int
) -> None:
    numbers, both, told = count(), threading.Barrier(2), threading.Event()

    def script(call: Call) -> None:
        number = next(numbers)
        both.wait(10)
        if number:
            told.wait(10)
        speech.refusing(429, retry_after=str(waits[number]))(call)

    scripted.on(f"two-waits-{name}", script)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, gateway, "chat", name, f"two-waits-{name}") for _ in range(2)]
        eventually(lambda: any(each.done() for each in asked))
        told.set()
        assert {each.result(10).status for each in asked} == {429}
    refused = ask(gateway, "chat", name, "after-two-waits")
    assert refused.status == 429
    assert kept - 5 < int(refused.headers["retry-after"]) <= kept


def test_an_overload_with_a_wait_rests_as_a_fault(gateway: Gateway, scripted: Upstream) -> None:
    scripted.on("overload-with-wait", speech.refusing(503, retry_after="30"))
    first = ask(gateway, "chat", "overloaded", "overload-with-wait")
    assert (first.status, first.headers["retry-after"]) == (503, "30")
    assert len(first.attempts) == 1
    second = ask(gateway, "chat", "overloaded", "overload-with-wait-2")
    assert (second.status, second.attempts) == (503, [])
    assert int(second.headers["retry-after"]) <= MAX_COOLDOWN_SECONDS


@pytest.fixture
def gateway(touchy: Gateway) -> Gateway:
    return touchy
