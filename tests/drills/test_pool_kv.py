"""An engine whose KV cache is small: what does not fit, and what its events say of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.pool import PoolBackend
from sluice.router.pool.pools import Pools
from sluice.router.pool.prompt_text import PromptReader
from tests.drills.pool_site import PATIENT, Client, connected, pool_config
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import StartGateway
from tests.harness.gateway import free_port
from tests.harness.polling import eventually, eventually_async
from tests.router.pool.live_fakes import Watcher

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.pool]


@pytest.fixture(scope="module")
def engine(vllm_python: Path, tiny_model: Path, engine_logs: Path) -> Iterator[VllmEngine]:
    """An engine whose cache holds 4,096 tokens, and whose batch could use more; it publishes what
    happens to that."""
    log = engine_logs / "pool-kv.log"
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{free_port()}",
        "replay_endpoint": f"tcp://*:{free_port()}",
    }
    arguments = ["--kv-events-config", json.dumps(events)]
    with VllmEngine(vllm_python, tiny_model, log=log, kv_cache_mb=8, extra_args=arguments) as made:
        yield made


async def test_an_exhausted_cache_preempts_and_fails_nobody(
    engine: VllmEngine, start_gateway: StartGateway
) -> None:
    # The pool is told of more cache than there is, so that it does not hold requests back.
    options: dict[str, Any] = {
        "health": PATIENT,
        "ttft_slo_seconds": {"interactive": 100},
        "kv_blocks": 100_000,
        "kv_events": True,
    }
    config = pool_config({"tight": ([engine.url], options)})
    gateway = await asyncio.to_thread(start_gateway, "drill-kv", config)
    async with connected() as session:
        client = Client(gateway, session)
        jobs = [
            client.ask("tight", [{"role": "user", "content": f"say {n}"}], max_tokens=600)
            for n in range(12)
        ]
        answers = await asyncio.gather(*jobs)
    assert all(answer.finished for answer in answers), answers
    assert engine.metric("vllm:num_preemptions_total") > 0
    shown = "gw_pool_replica_preemptions"
    await asyncio.to_thread(eventually, lambda: gateway.metric(shown, pool="tight") > 0)
    heard = "gw_pool_replica_kv_blocks"
    await asyncio.to_thread(eventually, lambda: gateway.metric(heard, pool="tight") > 0)


class Listener:
    """A pool in this process that hears one engine."""

    def __init__(self, engine: VllmEngine) -> None:
        self.pool = PoolBackend(
            PoolConfig("heard", (engine.url,), kv_events=True), Watcher(), "gateway"
        )
        self.pools = Pools({"heard": self.pool}, None)

    async def ask(self, body: bytes) -> None:
        request = UpstreamRequest(Endpoint.CHAT, VllmEngine.model, body, False, "r", max_tokens=4)
        response = await self.pool.send(request)
        assert response.status == 200
        await response.read(1 << 20)

    async def learnt(self) -> None:
        """Until what has ended was looked at."""
        caches = self.pool.caches
        assert caches is not None

        async def none_left() -> bool:
            return not caches._finished

        await eventually_async(none_left)

    async def believes(self, body: bytes, least: int, most: int) -> None:
        """Until so many leading blocks of a prompt are believed to be cached."""
        prompt, _ = PromptReader(b"heard").read(body)

        async def so_many() -> bool:
            matched = self.pool.scheduler.index.match(tuple(prompt.hashes)).values()
            return least <= max(matched, default=0) <= most

        await eventually_async(so_many)


@pytest.fixture
async def listener(engine: VllmEngine) -> AsyncIterator[Listener]:
    made = Listener(engine)
    await made.pools.start()
    yield made
    await made.pools.stop()
    await made.pool.close()


def asked(*contents: str) -> bytes:
    """The body of a chat with a system message and what follows it."""
    messages: list[dict[str, Any]] = [
        {"role": "system" if not number else "user", "content": content}
        for number, content in enumerate(contents)
    ]
    return json.dumps({"model": VllmEngine.model, "messages": messages, "max_tokens": 4}).encode()


async def test_what_an_engine_stores_and_evicts_for_others_is_known(
    engine: VllmEngine, listener: Listener
) -> None:
    system = " ".join(f"rule {number} of the house" for number in range(90))
    ours, theirs = asked(system, "ours"), asked(system, "theirs")
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def directly(body: bytes) -> None:
            """Past the pool, which does not hear of it but by events."""
            async with session.post(f"{engine.url}/v1/chat/completions", data=body) as answer:
                assert answer.status == 200, await answer.text()

        await directly(theirs)  # so that nothing of ours is new to the engine
        for _ in range(2):
            await listener.ask(ours)
            await listener.learnt()
        await listener.believes(ours, least=3, most=9)

        for number in range(6):
            other = " ".join(f"case {number * 1000 + each} at court" for each in range(110))
            await directly(asked(other))
        await listener.believes(ours, least=0, most=0)

        await directly(theirs)
        await listener.believes(ours, least=3, most=9)
