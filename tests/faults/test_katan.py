"""Faults of llm-katan, an upstream that others wrote, in both of its formats."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.katan import KatanEngine
from tests.faults.asking import HEADERS, PATHS, Seen, ask, body, raised_by_sdk
from tests.faults.models import BUDGET, provider
from tests.harness.fixtures import model
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually

pytestmark = pytest.mark.katan

KINDS = ["openai", "anthropic"]
ENDPOINTS = ["chat", "messages", "responses"]
FAULTY = {
    "failing": ("--error-rate", "1.0"),
    "limited": ("--rate-limit-after", "1"),
    "late": ("--timeout-after", "1"),
    "locked": ("--validate-keys",),
}


@pytest.fixture(scope="module")
def engines(katan_python: Path, engine_logs: Path) -> Iterator[dict[str, KatanEngine]]:
    """An engine for each fault, and a slow one that may be killed."""
    with ExitStack() as stack:
        found = {
            name: KatanEngine(
                katan_python, log=engine_logs / f"katan-{name}.log", extra_args=arguments
            )
            for name, arguments in FAULTY.items()
        }
        found["mortal"] = KatanEngine(
            katan_python, log=engine_logs / "katan-mortal.log", itl_ms=300
        )
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(stack.enter_context, found.values()))
        yield found


@pytest.fixture(scope="module")
def gateway(
    engines: dict[str, KatanEngine], start_gateway: Callable[[str, dict[str, Any]], Gateway]
) -> Gateway:
    """A gateway with a model `<fault>-<kind>` for each."""
    timeouts = {"connect": 1, "first_token": 3, "between_tokens": 2, "total": 20}
    providers, models = {}, []
    for fault, engine in engines.items():
        for kind in KINDS:
            name = f"{fault}-{kind}"
            providers[name] = provider(kind, engine.url, api_key="WRONG-KEY", timeouts=timeouts)
            models.append(model(name, {"provider": name, "model": engine.model}))
    breaker = {"min_calls": 1_000_000, "max_cooldown_seconds": 1e-9}
    config = {
        "providers": providers,
        "models": models,
        "dispatch": {"breaker": breaker},
        "server": {"drain_seconds": 5},
    }
    return start_gateway("faults-katan", config)


STATUSES = {"failing": 502, "limited": 429, "late": 504, "locked": 502}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTY)
def test_its_refusals_are_told(
    gateway: Gateway, fault: str, endpoint: str, kind: str, stream: bool
) -> None:
    name = f"{fault}-{kind}"
    seen = eventually(lambda: _refused(gateway, endpoint, name, stream))
    assert seen.status == STATUSES[fault]
    assert raised_by_sdk(seen)
    record = gateway.record(seen.request_id)
    assert record["status"] == "error"
    assert record["attempts"] == len(seen.attempts) <= BUDGET
    assert record["attempt_log"] == seen.headers["x-attempts"]


def _refused(gateway: Gateway, endpoint: str, name: str, stream: bool) -> Seen | None:
    """Some faults let one request through."""
    seen = ask(gateway, endpoint, name, "hello", stream)
    return seen if seen.status != 200 else None


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])  # what is killed stays dead
def test_an_engine_that_hangs_or_dies_inside_its_streams(
    gateway: Gateway, engines: dict[str, KatanEngine], how: signal.Signals
) -> None:
    engine = engines["mortal"]
    # its Anthropic streams are not paced, and over before anyone could break them
    clients = [(endpoint, "mortal-openai") for endpoint in ENDPOINTS]
    begun = threading.Barrier(len(clients) + 1)
    with ThreadPoolExecutor(len(clients)) as pool:
        streams = [pool.submit(_stream, gateway, *client, begun) for client in clients]
        begun.wait(30)
        engine.signal(how)
        found = [stream.result(60) for stream in streams]
    if how is signal.SIGSTOP:
        engine.signal(signal.SIGCONT)
    for seen in found:
        assert seen.status == 200
        for end in (b"[DONE]", b"message_stop", b"response.completed"):
            assert end not in seen.content
        assert raised_by_sdk(seen)
        record = gateway.record(seen.request_id)
        assert (record["status"], record["attempts"]) == ("error", 1)
        assert record["output_tokens"] > 0


def _stream(gateway: Gateway, endpoint: str, name: str, begun: threading.Barrier) -> Seen:
    """A stream whose first bytes the caller has when the barrier opens."""
    sent = body(endpoint, name, "so many words that are said again one by one", True)
    url, parts = gateway.url + PATHS[endpoint], list[bytes]()
    with (
        httpx.Client(timeout=30) as http,
        http.stream("POST", url, json=sent, headers=HEADERS) as response,
    ):
        for part in response.iter_raw():
            if not parts:
                begun.wait(30)
            parts.append(part)
    return Seen(endpoint, True, response.status_code, response.headers, b"".join(parts))
