"""However a request ends, its slot is free before its answer's end; and every billable operation
comes by the same door."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests.gateway.quotas.conftest import Pair
from tests.harness.gateway import Gateway
from tests.harness.limited import LimitedKey
from tests.harness.polling import eventually
from tests.harness.twins import OPERATIONS, answer_all, body_of
from tests.harness.upstream import Call, Script, chunk

GENERATING = ("chat", "completions", "messages", "responses")

IDS = [f"{operation}-{'stream' if stream else 'whole'}" for operation, _, stream in OPERATIONS]

every_operation = pytest.mark.parametrize(("operation", "path", "stream"), OPERATIONS, ids=IDS)


class Caller:
    """A key with one slot, which asks in one way, and lets answers end in many."""

    def __init__(
        self, limited: Pair, key: LimitedKey, operation: str, path: str, stream: bool
    ) -> None:
        self._limited = limited
        self._key = key
        self.operation = operation
        self.path = path
        self.stream = stream

    def ask(
        self,
        model: str = "good",
        script: Script | None = None,
        more: dict[str, Any] | None = None,
    ) -> int:
        """The status of an answer, read to its end."""
        body = self._body(model, script) | (more or {})
        return self._limited.post(self.path, body, self._key.secret).status_code

    def ask_raw(self, body: bytes) -> int:
        """The same with any bytes for a body."""
        return self._limited.post(self.path, body, self._key.secret).status_code

    def leave(self, script: Script, until: Callable[[bytes], bool] | None) -> None:
        """Ask, and go away: as soon as the upstream was called, or when so much has come."""
        arrived = threading.Event()

        def watched(call: Call) -> None:
            arrived.set()
            script(call)

        body = json.dumps(self._body("good", watched)).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer"
            f" {self._key.secret}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self._limited.one.port), 5) as connection:
            connection.sendall(head.encode() + body)
            assert arrived.wait(5)
            received = b""
            while until is not None and not until(received):
                received += connection.recv(65536)

    def let_in(self, gateway: Gateway) -> bool:
        """Whether the slot is free now, as a gateway sees it."""
        body = self._body("good", None)
        answer = self._limited.post(self.path, body, self._key.secret, gateway)
        assert answer.status_code in (200, 429), answer.text
        return answer.status_code == 200

    def check(self, exit_: str) -> None:
        """The slot is free at once, whichever gateway is asked."""
        for gateway in (self._limited.other, self._limited.one):
            assert self.let_in(gateway), f"no slot after: {exit_}"

    def _body(self, model: str, script: Script | None) -> dict[str, Any]:
        marker = f"m{uuid4().hex}"
        self._limited.upstream.on(marker, script or answer_all)
        return body_of(self.operation, model, marker, self.stream)


@pytest.fixture(scope="session")
def narrow(limited: Pair) -> LimitedKey:
    """A key with one slot, and tokens for small requests only."""
    return limited.tenants.key(max_concurrent=1, tokens_per_minute=60_000)


def refuse(status: int, call: Call) -> None:
    call.respond(status, {"error": {"message": "no", "type": "server_error"}})


def rest(call: Call) -> None:
    error = {"error": {"message": "later", "type": "server_error"}}
    call.respond(429, error, {"retry-after": "60"})


def hang(call: Call) -> None:
    call.wait_for_client_to_leave()


def begin(call: Call) -> None:
    """An answer that has begun."""
    model, path = call.json["model"], call.path
    if not call.json.get("stream"):
        call.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"
        )
        return
    call.start_stream()
    if path.endswith("/responses"):
        call.event({"type": "response.created", "response": {"id": "resp_1", "model": model}})
        call.event({"type": "response.output_text.delta", "delta": "word ", "item_id": "m"})
    elif path.endswith("/messages"):
        call.event({"type": "message_start"})
    elif path.endswith("/chat/completions"):
        call.event(chunk(model, {"role": "assistant", "content": "word "}))
    else:
        call.event(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": model,
                "choices": [{"index": 0, "text": "word ", "finish_reason": None}],
            }
        )


def stall(call: Call) -> None:
    begin(call)
    hang(call)


def reset(call: Call) -> None:
    begin(call)
    call.reset()


@every_operation
def test_the_slot_is_free_after_every_exit(
    limited: Pair, narrow: LimitedKey, operation: str, path: str, stream: bool
) -> None:
    caller = Caller(limited, narrow, operation, path, stream)
    resting = f"resting-{operation}-{stream}"
    exits: dict[str, tuple[Callable[[], int], set[int]]] = {
        "success": (caller.ask, {200}),
        "upstream 500": (partial(caller.ask, script=partial(refuse, 500)), {502}),
        "upstream 400": (partial(caller.ask, script=partial(refuse, 400)), {400}),
        "upstream 429": (partial(caller.ask, resting, rest), {429, 503}),
        "everybody rests": (partial(caller.ask, resting), {429, 503}),
        "no first token": (partial(caller.ask, "hasty", hang), {504}),
        "no next token": (partial(caller.ask, "hasty", stall), {200} if stream else {504}),
        "reset": (partial(caller.ask, script=reset), {200} if stream else {502}),
        "not JSON": (partial(caller.ask_raw, b'{"model": '), {400}),
        "wrong member": (partial(caller.ask, more={"stream": "yes"}), {400}),
        "unknown model": (partial(caller.ask, "nobody"), {404}),
        "another limit": (partial(caller.ask, more=_large(operation)), {429}),
    }
    if operation in GENERATING:
        bound = "max_output_tokens" if operation == "responses" else "max_tokens"
        exits["beyond the context"] = (partial(caller.ask, more={bound: 10**9}), {400})
    for name, (end, statuses) in exits.items():
        status = end()
        assert status in statuses, f"{name}: {status}"
        caller.check(name)


def _large(operation: str) -> dict[str, Any]:
    """More tokens than a minute has."""
    if operation not in GENERATING:
        return {"input": "word " * 800_000}
    return {"max_output_tokens" if operation == "responses" else "max_tokens": 99_000}


@every_operation
def test_the_slot_is_free_after_a_client_has_left(
    limited: Pair, narrow: LimitedKey, operation: str, path: str, stream: bool
) -> None:
    caller = Caller(limited, narrow, operation, path, stream)
    leavings: dict[str, tuple[Script, Callable[[bytes], bool] | None]] = {
        "before the first token": (hang, None)
    }
    if stream:
        leavings["in the middle"] = (stall, lambda received: b"word" in received)
    for name, (script, until) in leavings.items():
        caller.leave(script, until)
        eventually(partial(caller.let_in, limited.other), 1.0, 0.005)
        caller.check(name)


#: What each limit, set to nothing, says.
NOTHING = {
    "requests_per_minute": "rate_limit_exceeded",
    "tokens_per_minute": "rate_limit_exceeded",
    "max_concurrent": "concurrency_limit_exceeded",
    "budgets": "insufficient_quota",
}


@pytest.fixture(scope="session")
def shut(limited: Pair) -> dict[str, list[LimitedKey]]:
    """By dimension: keys that it lets nothing in for, by a limit of the key's, the team's and the
    organisation's."""
    made: dict[str, list[LimitedKey]] = {}
    for dimension in NOTHING:
        zero: Any = [{"period": "day", "limit_usd": "0"}] if dimension == "budgets" else 0
        limits = {dimension: zero}
        made[dimension] = [
            limited.tenants.key(**limits),
            limited.tenants.key(limited.tenants.team(**limits)),
            limited.tenants.key(limited.tenants.team(limited.tenants.organisation(**limits))),
        ]
    return made


@every_operation
@pytest.mark.parametrize("dimension", NOTHING)
def test_every_operation_comes_by_the_same_door(
    limited: Pair,
    shut: dict[str, list[LimitedKey]],
    dimension: str,
    operation: str,
    path: str,
    stream: bool,
) -> None:
    for key in shut[dimension]:
        marker = f"m{uuid4().hex}"
        answer = limited.post(path, body_of(operation, "good", marker, stream), key.secret)
        assert answer.status_code == 429
        error = answer.json()["error"]
        assert NOTHING[dimension] in (error.get("code"), answer.headers.get("x-error-code")) or (
            operation == "messages" and error["type"] == "rate_limit_error"
        )
        assert not limited.upstream.calls_with(marker)


def at_once(limited: Pair, key: LimitedKey, requests: int, let_in: int) -> None:
    """Ask so many times at the same moment, at both gateways; so many must get in."""
    marker, go_on = f"m{uuid4().hex}", threading.Event()

    def held(call: Call) -> None:
        go_on.wait(10)
        answer_all(call)

    limited.upstream.on(marker, held)
    body = body_of("chat", "good", marker)
    with ThreadPoolExecutor(requests) as pool:
        asked = [
            pool.submit(
                limited.post,
                "/v1/chat/completions",
                body,
                key.secret,
                (limited.one, limited.other)[number % 2],
            )
            for number in range(requests)
        ]
        try:
            eventually(lambda: sum(each.done() for each in asked) == requests - let_in, 5)
            in_progress = len(limited.upstream.calls_with(marker))
        finally:
            go_on.set()
    statuses = sorted(each.result().status_code for each in asked)
    assert in_progress == let_in
    assert statuses == [200] * let_in + [429] * (requests - let_in)


def test_parallel_requests_do_not_pass_a_limit_on_tokens_together(limited: Pair) -> None:
    """litellm#18730: five parallel requests, 100 tokens a minute."""
    at_once(limited, limited.tenants.key(tokens_per_minute=100), requests=5, let_in=1)


def test_a_limit_is_not_multiplied_by_processes(limited: Pair) -> None:
    """litellm#16011: two processes, limit 4, 16 at the same time."""
    at_once(limited, limited.tenants.key(max_concurrent=4), requests=16, let_in=4)


def test_what_is_spent_is_spent(limited: Pair) -> None:
    """litellm#26672, #23714: over the budget, the very next request is refused everywhere."""
    key = limited.tenants.key(budgets=[{"period": "day", "limit_usd": "0.0055"}])
    body = body_of("chat", "good", "spender")
    statuses: list[int] = []
    while not statuses or statuses[-1] == 200:  # each reserves 0.0041 USD and costs 0.000138
        gateway = (limited.one, limited.other)[len(statuses) % 2]
        answer = limited.post("/v1/chat/completions", body, key.secret, gateway)
        statuses.append(answer.status_code)
        assert len(statuses) < 40
    assert answer.json()["error"]["code"] == "insufficient_quota"
    for gateway in (limited.one, limited.other):
        answer = limited.post("/v1/chat/completions", body, key.secret, gateway)
        assert answer.status_code == 429
    assert len(statuses) > 5
