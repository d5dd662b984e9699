"""More than an engine's KV cache holds: it preempts, the gateway shows it, and nothing fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.pool_site import PATIENT, Client, connected, pool_config
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import StartGateway
from tests.harness.polling import eventually

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.pool]


@pytest.fixture(scope="module")
def engine(vllm_python: Path, tiny_model: Path, engine_logs: Path) -> Iterator[VllmEngine]:
    """An engine whose cache holds 4,096 tokens, and whose batch could use more."""
    log = engine_logs / "pool-kv.log"
    with VllmEngine(vllm_python, tiny_model, log=log, kv_cache_mb=8) as made:
        yield made


async def test_an_exhausted_cache_preempts_and_fails_nobody(
    engine: VllmEngine, start_gateway: StartGateway
) -> None:
    # The pool is told of more cache than there is, so that it does not hold requests back.
    options = {"health": PATIENT, "ttft_slo_seconds": {"interactive": 100}, "kv_blocks": 100_000}
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
