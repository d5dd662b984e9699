"""A pool of three real engines: where prompts go, and what breaks; see docs/pool.md.

The engines serve the whole module. Those that a drill kills are the last ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.pool_site import (
    PATIENT,
    WATCHFUL,
    Client,
    Served,
    connected,
    in_groups,
    name_of,
    pool_config,
)
from tests.drills.site import Site
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import StartGateway
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually, eventually_async
from tests.harness.upstream import Call, Upstream
from tests.servers import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.pool]

CONVERSATIONS = 30
TURNS = 6
SYSTEM_TOKENS = 1000
TURN_TOKENS = 300
ENDLESS = {
    "messages": [{"role": "user", "content": "count the waves"}],
    "max_tokens": 2000,
    "stream": True,
}
WORDS = Path(__file__).read_text().split()


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


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


async def words_a_token(client: Client) -> float:
    """How many words of ours make a token."""
    served = await client.ask("alone", [{"role": "user", "content": text(random.Random(1), 200)}])
    return 200 / int(served.usage["prompt_tokens"])


class Comparison:
    """Conversations with one system prompt, new to all engines, over one pool."""

    def __init__(
        self, client: Client, engines: list[VllmEngine], pool: str, words: float, seed: int
    ) -> None:
        self._client = client
        self._engines = engines
        self._pool = pool
        self._words = words
        self._seed = seed
        self._system = text(random.Random(seed), int(SYSTEM_TOKENS * words))
        self._queries = self._hits = 0.0
        self._answers: list[Served] = []

    @property
    def hit_rate(self) -> float:
        """By the engines' own counters."""
        return self._hits / self._queries

    @property
    def ttft(self) -> float:
        """The mean, in seconds."""
        return statistics.mean(answer.ttft for answer in self._answers)

    @property
    def replicas(self) -> int:
        """How many served it."""
        return len({answer.replica for answer in self._answers})

    async def hold(self, numbers: range) -> None:
        """Hold some of the conversations, three at a time."""
        queries, hits = self._counters()
        await in_groups(3, [self._converse(random.Random(self._seed + n)) for n in numbers])
        now = self._counters()
        self._queries += now[0] - queries
        self._hits += now[1] - hits

    async def _converse(self, draw: random.Random) -> None:
        messages = [{"role": "system", "content": self._system}]
        for _ in range(TURNS):
            said = text(draw, int(TURN_TOKENS * self._words))
            messages.append({"role": "user", "content": said})
            served = await self._client.ask(self._pool, messages)
            assert served.finished, served
            messages.append({"role": "assistant", "content": served.text})
            self._answers.append(served)

    def _counters(self) -> tuple[float, float]:
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        queries, hits = (sum(engine.metric(name) for engine in self._engines) for name in names)
        return queries, hits


async def test_prompts_meet_their_cache(client: Client, engines: list[VllmEngine]) -> None:
    words = await words_a_token(client)
    turns, prefix, alone = (
        Comparison(client, engines, pool, words, seed)
        for seed, pool in ((1000, "turns"), (2000, "prefix"), (3000, "alone"))
    )
    for start in range(0, CONVERSATIONS, 6):  # in turns, since the machine has other work as well
        for each in (turns, prefix, alone):
            await each.hold(range(start, start + 6))
    print({each._pool: (each.hit_rate, each.ttft) for each in (turns, prefix, alone)})
    assert turns.replicas == 3
    assert prefix.hit_rate > alone.hit_rate - 0.05  # times are printed: they are the machine's too


async def test_a_replica_that_returns_500s_is_taken_out(client: Client, gateway: Gateway) -> None:
    asked = [[{"role": "user", "content": f"question {number}"}] for number in range(12)]
    answers = [await client.ask("faulty", messages) for messages in asked]
    assert all(answer.finished for answer in answers)
    states = "gw_pool_replica_state"
    eventually(lambda: gateway.metric(states, pool="faulty") == 1 + 1 + 3)
    assert gateway.metric("gw_pool_moves_total", pool="faulty", reason="failed") >= 3


async def test_dropped_streams_leave_nothing_running(
    gateway: Gateway, engines: list[VllmEngine]
) -> None:
    wanted, seconds = 500, 30
    body = json.dumps({**ENDLESS, "model": "watched"}).encode()
    opened = [0]

    async def drop(draw: random.Random) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(_head(len(body)) + body)
            await writer.drain()
            opened[0] += 1
            await asyncio.sleep(draw.uniform(0, 0.2))  # some wait, some run, some are not read yet
            writer.transport.abort()

    draw = random.Random(5)
    began = time.monotonic()
    started, tasks = 0, set[asyncio.Task[None]]()
    while (now := time.monotonic() - began) < seconds:
        due = int(now * wanted)
        for _ in range(started, due):
            if len(tasks) < 1000:
                tasks.add(task := asyncio.create_task(drop(draw)))
                task.add_done_callback(tasks.discard)
        started = due
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    ended = time.monotonic()

    async def idle() -> bool:
        busy = await asyncio.to_thread(
            lambda: sum(engine.running() + engine.waiting() for engine in engines)
        )
        return busy == 0

    await eventually_async(idle, 30)
    print(
        f"{opened[0] / seconds:.0f} streams a second; idle after {time.monotonic() - ended:.1f} s"
    )
    assert opened[0] > 20 * seconds
    outstanding = "gw_pool_replica_outstanding"
    await asyncio.to_thread(eventually, lambda: gateway.metric(outstanding, pool="watched") == 0)


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
