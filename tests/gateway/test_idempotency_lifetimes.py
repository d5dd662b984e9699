"""How long a generation lives: clients that leave and come back, gateways and Redis that go."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.billing.events import STREAM
from sluice.gateway.idempotency.scripts import LEASES, TAPE
from tests.contract.scripts import answering
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.twins import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    Slow,
    Twins,
    another,
    answer_all,
    body_of,
    keyed_config,
    text_of,
)
from tests.harness.upstream import Call, chunk
from tests.servers import RunningServer

CHAT = "/v1/chat/completions"


@contextmanager
def listening(gateway: Gateway, key: str, body: Any, until: bytes = b"word") -> Iterator[bytes]:
    """A client that has heard the beginning of a stream, and leaves in the end."""
    headers = {"authorization": f"Bearer {TEAM_KEY}", "idempotency-key": key}
    with httpx.stream("POST", gateway.url + CHAT, json=body, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200
        seen = b""
        for part in answer.iter_bytes():
            seen += part
            if until in seen:
                break
        yield seen


def abandoned(gateway: Gateway, key: str, body: Any, when: Callable[[], object]) -> None:
    """A client that leaves when something has come about, without an answer."""
    text = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TEAM_KEY}\r\n"
        f"idempotency-key: {key}\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head.encode() + text)
        eventually(when)


def row_of(twins: Twins, key: str, status: str) -> dict[str, Any]:
    """The row of the first upstream call that belongs to a key's marker."""
    request_id = twins.upstream.calls_with(key)[0].headers["x-request-id"]
    row = twins.one.record(request_id)
    assert row["status"] == status
    return row


@pytest.mark.parametrize("where", ["one", "other"])
def test_who_comes_back_gets_the_answer_from_its_first_event(twins: Twins, where: str) -> None:
    key = f"resume-{where}-end"
    script = Slow()
    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key, stream=True)
    with listening(twins.one, key, body) as seen:
        pass
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(twins.post, key, body, gateway=getattr(twins, where))
        call = twins.upstream.call_with(key)
        eventually(lambda: twins.one.metric("gw_in_flight", model="vllm") == 1)
        script.go_on.set()
        answer = back.result(20)
    assert answer.content.startswith(seen)
    assert text_of(answer.text) == "word " * 3
    assert answer.text.endswith("[DONE]\n\n")
    assert len(twins.upstream.calls_with(key)) == 1
    call.ended.wait(5)
    assert row_of(twins, key, "ok")["request_id"] == answer.headers["x-original-request-id"]


def test_whole_answers_wait_for_who_left(twins: Twins) -> None:
    key = "resume-whole-end"
    go_on = threading.Event()

    def script(call: Call) -> None:
        go_on.wait(10)
        answer_all(call)

    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key)
    abandoned(twins.one, key, body, lambda: twins.upstream.calls_with(key))
    go_on.set()
    answer = twins.post(key, body, gateway=twins.other)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert len(twins.upstream.calls_with(key)) == 1
    row_of(twins, key, "ok")


def test_an_answer_that_nobody_waits_for_is_cut_after_the_grace(twins: Twins) -> None:
    key = "grace-end"
    twins.upstream.on(key, Slow())
    body = body_of("chat", "vllm", key, stream=True)
    with listening(twins.one, key, body):
        pass
    left = time.monotonic()
    call = twins.upstream.call_with(key)
    call.ended.wait(GRACE_SECONDS - 0.3)
    assert not call.ended.is_set()
    eventually(lambda: call.ended.is_set() or twins.one.metric("gw_in_flight", model="vllm") == 0)
    assert GRACE_SECONDS <= time.monotonic() - left < GRACE_SECONDS + 1.5
    row = row_of(twins, key, "cancelled")
    assert row["error_code"] == "client_closed_request"
    assert row["output_tokens"] > 0
    twins.upstream.on(key, answer_all)
    again = twins.post(key, body)
    assert again.status_code == 200
    assert "idempotency-replayed" not in again.headers
    assert len(twins.upstream.calls_with(key)) == 2


def test_a_listener_on_another_gateway_keeps_an_answer_alive(twins: Twins) -> None:
    key = "kept-alive-end"
    script = Slow()
    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key, stream=True)
    with ThreadPoolExecutor(1) as pool:
        with listening(twins.one, key, body):
            other = pool.submit(twins.post, key, body, gateway=twins.other)
            with twins.redis() as redis:
                tape = eventually(lambda: _seen_tape(redis))
        left = time.monotonic()
        with twins.redis() as redis:
            eventually(
                lambda: time.monotonic() - left > GRACE_SECONDS + 1 and redis.exists(tape), 10
            )
        script.go_on.set()
        answer = other.result(20)
    assert answer.text.endswith("[DONE]\n\n")
    row_of(twins, key, "ok")


@pytest.mark.parametrize("where", ["one", "other"])
def test_silence_is_filled_for_every_listener(twins: Twins, where: str) -> None:
    key = f"silent-{where}-end"

    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("m", {"role": "assistant", "content": "word "}))
        call.wait_for_client_to_leave()

    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key, stream=True)
    with (
        listening(twins.one, key, body),
        listening(getattr(twins, where), key, body, b": keep-alive\n\n") as seen,
    ):
        assert b"word" in seen


def _seen_tape(redis: Any) -> bytes | None:
    for owner in redis.zrange(LEASES, 0, -1):
        tape: bytes = TAPE.encode() + owner
        if redis.hexists(tape, "seen"):
            return tape
    return None


@pytest.fixture
def third(twins: Twins, tmp_path: Path) -> Iterator[Gateway]:
    """One more gateway, to be killed or stopped."""
    gateway = another(twins.one, keyed_config(twins.upstream.url), tmp_path, "third")
    gateway.start()
    yield gateway
    gateway.kill()


@pytest.mark.parametrize("operation", ["chat", "messages", "responses"])
def test_a_generation_that_is_killed_is_no_answer_and_frees_its_key(
    twins: Twins, third: Gateway, operation: str
) -> None:
    key = f"killed-{operation}-end"
    path = {"chat": CHAT, "messages": "/v1/messages", "responses": "/v1/responses"}[operation]
    twins.upstream.on(key, Slow())
    body = body_of(operation, "vllm", key, stream=True)
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(_heard, third, path, key, body)
        twins.upstream.call_with(key)
        elsewhere = pool.submit(twins.post, key, body, path)
        with twins.redis() as redis:
            eventually(lambda: _seen_tape(redis))
        third.kill()
        killed = time.monotonic()
        broken = elsewhere.result(20)
        assert time.monotonic() - killed < LEASE_SECONDS + 3.0
        lost.result(20)
    assert broken.status_code == 200
    assert "word" in broken.text
    assert "gateway_lost" in broken.text or "broke off" in broken.text
    assert not any(end in broken.text for end in ("[DONE]", "message_stop", "response.completed"))
    twins.upstream.on(key, answering())
    again = twins.post(key, body, path, twins.other)
    assert again.status_code == 200
    assert "idempotency-replayed" not in again.headers
    row = row_of(twins, key, "error")
    assert (row["error_code"], row["estimated"]) == ("gateway_lost", True)
    assert row["output_tokens"] > 0
    assert row["cost_nano_usd"] == row["input_tokens"] * 3000 + row["output_tokens"] * 15000
    assert twins.one.record(again.headers["x-request-id"])["status"] == "ok"
    assert len(twins.rows(row["request_id"])) == 1


def _heard(gateway: Gateway, path: str, key: str, body: Any) -> bytes:
    """What a client heard until its gateway was gone."""
    headers = {"authorization": f"Bearer {TEAM_KEY}", "idempotency-key": key}
    seen = b""
    try:
        with httpx.stream("POST", gateway.url + path, json=body, headers=headers) as answer:
            for part in answer.iter_bytes():
                seen += part
    except httpx.HTTPError:
        pass
    return seen


def test_a_generation_that_is_killed_before_it_delivered_costs_nothing(
    twins: Twins, third: Gateway
) -> None:
    key = "killed-early-end"
    go_on = threading.Event()
    twins.upstream.on(key, lambda call: go_on.wait(10))
    body = body_of("chat", "vllm", key)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_heard, third, CHAT, key, body)
        twins.upstream.call_with(key)
        elsewhere = pool.submit(twins.post, key, body)
        with twins.redis() as redis:
            eventually(lambda: _seen_tape(redis))
        third.kill()
        broken = elsewhere.result(20)
        first.result(20)
    go_on.set()
    assert broken.status_code == 503
    assert broken.headers["retry-after"] == "1"
    assert broken.json()["error"]["code"] == "gateway_lost"
    twins.upstream.on(key, answer_all)
    again = twins.post(key, body)
    assert again.status_code == 200
    assert twins.one.record(again.headers["x-request-id"])["status"] == "ok"
    lost = twins.upstream.calls_with(key)[0].headers["x-request-id"]
    assert twins.rows(lost) == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_gateway_that_stood_still_for_too_long_has_lost_the_key(
    twins: Twins, third: Gateway, stream: bool
) -> None:
    """What it goes on to do is neither an answer nor charged; what it had delivered is."""
    key = f"paused-{stream}-end"
    go_on = threading.Event()

    def whole(call: Call) -> None:
        go_on.wait(20)
        answer_all(call)

    twins.upstream.on(key, Slow(go_on=go_on) if stream else whole)
    body = body_of("chat", "vllm", key, stream=stream)
    with ThreadPoolExecutor(1) as pool, twins.redis() as redis:
        paused = pool.submit(_heard, third, CHAT, key, body)
        call = twins.upstream.call_with(key)
        [owner] = eventually(lambda: redis.zrange(LEASES, 0, -1))
        if stream:
            eventually(lambda: redis.hexists(TAPE.encode() + owner, "event"))
        os.kill(third.pid, signal.SIGSTOP)
        eventually(lambda: redis.zcard(LEASES) == 0)
        twins.upstream.on(key, answer_all)
        again = twins.post(key, body)
        go_on.set()
        os.kill(third.pid, signal.SIGCONT)
        text = paused.result(20)
    assert b"[DONE]" not in text
    assert b"gateway_lost" in text
    assert again.status_code == 200
    assert twins.post(key, body, gateway=twins.other).content == again.content
    assert twins.one.record(again.headers["x-request-id"])["status"] == "ok"
    third.stop()
    with twins.redis() as redis:
        eventually(lambda: redis.xlen(STREAM) == 0)
    rows = twins.rows(call.headers["x-request-id"])
    assert [row["error_code"] for row in rows] == (["gateway_lost"] if stream else [])


def test_a_gateway_that_is_told_to_stop_finishes_its_generations(
    twins: Twins, third: Gateway
) -> None:
    key = "drained-end"
    script = Slow()
    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key, stream=True)
    with ThreadPoolExecutor(2) as pool:
        here = pool.submit(_heard, third, CHAT, key, body)
        twins.upstream.call_with(key)
        elsewhere = pool.submit(twins.post, key, body)
        with twins.redis() as redis:
            eventually(lambda: _seen_tape(redis))
        third.terminate()
        eventually(lambda: third.request("GET", "/health/ready", key=None).status_code == 503)
        script.go_on.set()
        assert here.result(20).endswith(b"[DONE]\n\n")
        assert elsewhere.result(20).text.endswith("[DONE]\n\n")
        assert third.wait(10) == 0
    assert row_of(twins, key, "ok")
    assert twins.post(key, body).headers["idempotency-replayed"] == "true"


def test_a_generation_that_outlasts_the_drain_breaks_off(twins: Twins, third: Gateway) -> None:
    key = "drain-deadline-end"
    twins.upstream.on(key, Slow())
    body = body_of("chat", "vllm", key, stream=True)
    with ThreadPoolExecutor(2) as pool:
        here = pool.submit(_heard, third, CHAT, key, body)
        twins.upstream.call_with(key)
        elsewhere = pool.submit(twins.post, key, body)
        with twins.redis() as redis:
            eventually(lambda: _seen_tape(redis))
            third.terminate()
            eventually(lambda: third.request("GET", "/health/ready", key=None).status_code == 503)
            third.terminate()
            texts = [here.result(20).decode(), elsewhere.result(20).text]
            assert third.wait(15) == 0
            assert redis.zcard(LEASES) == 0
    for text in texts:
        assert '"error"' in text
        assert "[DONE]" not in text
    assert row_of(twins, key, "error")["error_code"] == "shutting_down"
    twins.upstream.on(key, answer_all)
    assert "idempotency-replayed" not in twins.post(key, body).headers


class TestRedisAway:
    @pytest.fixture
    def start(
        self,
        valkey_server: Callable[[], RunningServer],
        twins: Twins,
        tmp_path: Path,
    ) -> Iterator[Callable[..., tuple[Gateway, RunningServer]]]:
        """Starts a gateway with a Redis of its own."""
        started: list[Gateway] = []

        def work(**idempotency: Any) -> tuple[Gateway, RunningServer]:
            redis = valkey_server()
            gateway = Gateway(
                keyed_config(twins.upstream.url, **idempotency),
                twins.one.env["SLUICE_DATABASE_URL"],
                redis.url,
                tmp_path,
            )
            gateway.start()
            started.append(gateway)
            return gateway, redis

        yield work
        for gateway in started:
            gateway.kill()

    def test_a_promise_that_cannot_be_kept_is_not_made(
        self, twins: Twins, start: Callable[..., tuple[Gateway, RunningServer]]
    ) -> None:
        gateway, redis = start()
        body = body_of("chat", "vllm", "away-closed-end")
        redis.stop()
        refused = twins.post("away-key", body, gateway=gateway)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "idempotency_unavailable"
        assert gateway.request("POST", CHAT, body).status_code == 200
        message = twins.post("k", body_of("messages", "vllm", "x"), "/v1/messages", gateway)
        assert (message.status_code, message.json()["type"]) == (529, "error")
        redis.start()
        eventually(lambda: twins.post("away-key", body, gateway=gateway).status_code == 200)

    def test_or_the_answer_says_that_it_was_not(
        self, twins: Twins, start: Callable[..., tuple[Gateway, RunningServer]]
    ) -> None:
        gateway, redis = start(redis_away="open")
        body = body_of("chat", "vllm", "away-open-end")
        redis.stop()
        for _ in range(2):
            answer = twins.post("away-key", body, gateway=gateway)
            assert answer.status_code == 200
            assert answer.headers["idempotency-unprotected"] == "true"
        assert len(twins.upstream.calls_with("away-open-end")) == 2

    def test_a_stream_waits_for_a_redis_that_comes_back(
        self, twins: Twins, start: Callable[..., tuple[Gateway, RunningServer]]
    ) -> None:
        gateway, redis = start(lease_seconds=20)
        key = "away-back-end"
        script = Slow()
        twins.upstream.on(key, script)
        body = body_of("chat", "vllm", key, stream=True)
        with ThreadPoolExecutor(1) as pool:
            heard = pool.submit(_heard, gateway, CHAT, key, body)
            twins.upstream.call_with(key)
            redis.stop()
            script.go_on.set()
            redis.start()
            assert heard.result(30).endswith(b"[DONE]\n\n")
        again = twins.post(key, body, gateway=gateway)
        assert again.headers["idempotency-replayed"] == "true"
        assert text_of(again.text) == "word " * 3

    def test_a_stream_breaks_off_when_redis_stays_away(
        self, twins: Twins, start: Callable[..., tuple[Gateway, RunningServer]]
    ) -> None:
        gateway, redis = start()
        key = "away-long-end"
        script = Slow()
        twins.upstream.on(key, script)
        body = body_of("chat", "vllm", key, stream=True)
        with ThreadPoolExecutor(1) as pool:
            heard = pool.submit(_heard, gateway, CHAT, key, body)
            twins.upstream.call_with(key)
            redis.stop()
            script.go_on.set()
            text = heard.result(30)
        assert b"gateway_lost" in text
        assert b"[DONE]" not in text


def test_an_upstream_sees_one_generation_however_many_ask_at_once(twins: Twins) -> None:
    key = "crowd-end"
    script = Slow(words=20)
    twins.upstream.on(key, script)
    body = body_of("chat", "vllm", key, stream=True)
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(twins.post, key, body, gateway=gateway)
            for gateway in [twins.one, twins.other] * 8
        ]
        twins.upstream.call_with(key)
        script.go_on.set()
        texts = {one.result(30).text.replace(": keep-alive\n\n", "") for one in asked}
    assert len(texts) == 1
    assert len(twins.upstream.calls_with(key)) == 1
