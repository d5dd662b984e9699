"""A pool of three real engines: where prompts go, and what breaks; see docs/pool.md.

The engines serve the whole module. Those that a drill kills are the last ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.drills.conversations import AT_ONCE, Conversations, Vocabulary
from tests.drills.dropping import open_and_drop
from tests.drills.pool_site import (
    PATIENT,
    WATCHFUL,
    Client,
    connected,
    name_of,
    pool_config,
)
from tests.drills.site import Site
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import StartGateway
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Call, Upstream
from tests.servers import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.pool]

CONVERSATIONS = 30
#: Until the next message: three engines and their callers then take about half of two cores.
READING_SECONDS = 4.0
DROPPED_A_SECOND = 500
ENDLESS = {
    "messages": [{"role": "user", "content": "count the waves"}],
    "max_tokens": 2000,
    "stream": True,
}


@pytest.fixture(scope="module")
def engines(vllm_python: Path, tiny_model: Path, engine_logs: Path) -> Iterator[list[VllmEngine]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                VllmEngine(
                    vllm_python,
                    tiny_model,
                    log=engine_logs / f"pool-{number}.log",
                    max_model_len=4096,
                )
            )
            for number in range(3)
        ]


@pytest.fixture(scope="module")
def broken() -> Iterator[Upstream]:
    """A replica that is healthy, and answers every request with a 500."""
    server = Upstream()
    server.on("", _fails)
    yield server
    server.close()


def _fails(call: Call) -> None:
    if call.path in ("/health", "/v1/completions"):
        call.respond(200, {})
    elif call.path == "/v1/models":
        call.respond(200, {"data": [{"id": "tiny"}]})
    elif call.path == "/metrics":
        call.respond(200, b"", content_type="text/plain")
    else:
        call.respond(500, {"error": {"message": "out of luck", "type": "InternalServerError"}})


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, engines: list[VllmEngine], broken: Upstream) -> Gateway:
    urls = [engine.url for engine in engines]
    slow = {"ttft_slo_seconds": {"interactive": 100}}
    config = pool_config(
        {
            "prefix": (urls, {"health": PATIENT, **slow}),
            "turns": (urls, {"health": PATIENT, "placement": "round_robin", **slow}),
            "alone": (urls[:1], {"health": PATIENT, **slow}),
            "watched": (urls, {"health": WATCHFUL, **slow}),
            "faulty": (
                [*urls[:2], broken.url.removesuffix("/v1")],
                {"health": PATIENT, "placement": "round_robin", **slow},
            ),
        }
    )
    made = start_gateway("drill-pool", config)
    eventually(lambda: made.metric("gw_pool_replica_state", pool="watched") == 3, 30)
    return made


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with connected() as session:
        yield Client(gateway, session)


async def test_prompts_meet_their_cache(
    client: Client, engines: list[VllmEngine], tiny_model: Path
) -> None:
    words = Vocabulary(tiny_model)
    turns, prefix, alone = (
        Conversations(client, engines, pool, words, seed, reading)
        for seed, pool, reading in (
            (1000, "turns", READING_SECONDS),
            (2000, "prefix", READING_SECONDS),
            (3000, "alone", 0.0),  # what one engine finds does not depend on the time
        )
    )
    order = [turns, prefix]
    for start in range(0, CONVERSATIONS, AT_ONCE):  # in turns: the machine has other work as well
        group = range(start, start + AT_ONCE)
        for each in (*order, alone):
            await each.hold(group)
        order.reverse()
    for each in (turns, prefix, alone):
        print(f"{each.pool}: {each.hit_rate:.1%} found, {each.ttft * 1000:.0f} ms to a first token")
    print(f"prefix: {1 - prefix.ttft / turns.ttft:.0%} less than by turns")
    assert turns.replicas == 3
    assert prefix.hit_rate > alone.hit_rate - 0.05  # times are printed: they are the machine's too


async def test_a_replica_that_returns_500s_is_taken_out(client: Client, gateway: Gateway) -> None:
    failed = partial(gateway.metric, "gw_pool_moves_total", pool="faulty", reason="failed")
    for number in range(60):  # it gets fewer if a busy machine has had it out just now
        messages = [{"role": "user", "content": f"question {number}"}]
        assert (await client.ask("faulty", messages)).finished
        if failed() >= 3:
            break
    states = "gw_pool_replica_state"
    eventually(lambda: gateway.metric(states, pool="faulty") == 1 + 1 + 3)
    assert failed() >= 3


def test_dropped_streams_leave_nothing_running(gateway: Gateway, engines: list[VllmEngine]) -> None:
    body = json.dumps({**ENDLESS, "model": "watched"}).encode()
    request = _head(len(body)) + body
    before = sum(engine.aborted() for engine in engines)
    # some wait, some run, some are not read yet
    dropped = open_and_drop(
        gateway.port, request, DROPPED_A_SECOND, 30, longest=0.2, draw=Random(5)
    )
    ended = time.monotonic()
    eventually(lambda: sum(engine.running() + engine.waiting() for engine in engines) == 0, 30)
    idle = time.monotonic() - ended
    eventually(lambda: gateway.metric("gw_pool_replica_outstanding", pool="watched") == 0)
    read = gateway.metric("gw_requests_total", model="watched")
    aborted = sum(engine.aborted() for engine in engines) - before
    print(
        f"{dropped.rate:.0f} streams a second: of {dropped.opened} the gateway read {read:.0f},"
        f" engines had {aborted} when they were left, {dropped.begun} had begun;"
        f" idle after {idle:.1f} s"
    )
    assert dropped.opened > 20 * 30
    assert aborted > 0


def _head(length: int) -> bytes:
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {TEAM_KEY}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def test_redis_away_changes_nothing(
    engines: list[VllmEngine],
    postgres_server: Any,
    valkey_server: Any,
    tmp_path: Path,
) -> None:
    valkey: RunningServer = valkey_server()
    urls = [engine.url for engine in engines[:2]]
    slow = {"ttft_slo_seconds": {"interactive": 100}, "health": PATIENT, "discover": True}
    site = Site(postgres_server(), valkey, tmp_path, pool_config({"watched": (urls, slow)}))
    with contextlib.closing(site):
        site.start()
        asyncio.run(_asks(site.gateway, 4))
        valkey.kill()
        began = time.monotonic()
        while time.monotonic() - began < 30:
            asyncio.run(_asks(site.gateway, 4))
        valkey.start()
        asyncio.run(_asks(site.gateway, 4))
        assert site.gateway.metric("gw_pool_replica_state", pool="watched") == 2


async def _asks(gateway: Gateway, count: int) -> None:
    async with connected() as session:
        client = Client(gateway, session)
        jobs = [
            client.ask("watched", [{"role": "user", "content": f"question {number}"}])
            for number in range(count)
        ]
        answers = await asyncio.gather(*jobs)
        assert all(answer.finished for answer in answers), answers


async def test_a_hung_engine_takes_no_requests_after_two_seconds(
    client: Client, gateway: Gateway, engines: list[VllmEngine]
) -> None:
    asked = [{"role": "user", "content": "what is it that hangs? " * 40}]
    victim_name = (await client.ask("watched", asked)).replica
    victim = next(engine for engine in engines if name_of(engine) == victim_name)
    running = asyncio.create_task(client.ask("watched", asked, max_tokens=2000))
    await asyncio.to_thread(eventually, lambda: victim.running() > 0)
    victim.signal(signal.SIGSTOP)
    try:
        hung = [asyncio.create_task(client.ask("watched", asked)) for _ in range(3)]
        await asyncio.sleep(2)
        after = await asyncio.gather(*(client.ask("watched", asked) for _ in range(6)))
        assert all(each.finished and each.replica != victim_name for each in after)
        moved = await asyncio.gather(*hung)
        assert all(each.finished and each.replica != victim_name for each in moved), moved
        cut = await running
        assert (cut.finished, cut.error) == (False, "upstream_timeout")
    finally:
        victim.signal(signal.SIGCONT)
    state = "gw_pool_replica_state"
    await asyncio.to_thread(
        eventually, lambda: gateway.metric(state, pool="watched", replica=victim_name) == 1, 30
    )


async def test_a_killed_engine_ends_its_streams_honestly(
    client: Client, gateway: Gateway, engines: list[VllmEngine]
) -> None:
    asked = [{"role": "user", "content": "what is it that dies? " * 40}]
    victim_name = (await client.ask("watched", asked)).replica
    victim = next(engine for engine in engines if name_of(engine) == victim_name)
    running = asyncio.create_task(client.ask("watched", asked, max_tokens=2000))
    await asyncio.to_thread(eventually, lambda: victim.running() > 0)
    victim.signal(signal.SIGKILL)
    cut = await running
    assert not cut.finished
    assert cut.error is not None
    after = await asyncio.gather(*(client.ask("watched", asked) for _ in range(6)))
    assert all(each.finished and each.replica != victim_name for each in after)
    state = "gw_pool_replica_state"
    await asyncio.to_thread(
        eventually, lambda: gateway.metric(state, pool="watched", replica=victim_name) == 3, 5
    )
