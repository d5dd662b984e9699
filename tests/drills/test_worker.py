"""`sluice worker` with the real vLLM: joining, an engine's death, draining under load, weights that
are not what they should be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from redis.asyncio import Redis

from sluice.backends.replicas import Announcement, Replicas
from sluice.backends.worker.manifest import manifest_of
from sluice.backends.worker.model import EngineSettings, ServedModel
from sluice.backends.worker.worker import ExitCode
from tests.engines.vllm_engine import GENERATION_DEFAULTS
from tests.harness.gateway import Process, free_port, sluice
from tests.harness.polling import eventually_async
from tests.servers import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.pool]

#: As the tests' other engines; see there.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = (
    *("--dtype", "bfloat16", "--enforce-eager", "--distributed-executor-backend", "uni"),
    *("--kv-cache-memory-bytes", str(64 << 20)),
    *("--override-generation-config", GENERATION_DEFAULTS),
)
STREAMS = 4
TOKENS = 400


class Replica:
    """A worker with a vLLM, and what is read of it."""

    def __init__(self, python: Path, weights: Path, redis: RunningServer, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = ServedModel(
            name="tiny",
            version="1",
            pool="drill",
            weights=str(weights),
            manifest=manifest_of(weights),
            context_length=2048,
            stage="prod",
            engine=EngineSettings(max_num_seqs=8, max_queued_requests=16),
        )
        file = directory / "model.json"
        file.write_bytes(msgspec.json.encode(self.model))
        engine = shlex.join([str(python), "-m", "vllm.entrypoints.openai.api_server"])
        command = sluice(
            *("worker", "--model-file", str(file), "--host", "127.0.0.1"),
            *("--port", str(self.port), "--engine-command", engine),
            *("--no-verified-cache", "--hung-seconds", "120", "--advertise", self.url),
            *("--", *OPTIONS),
        )
        env = {"SLUICE_REDIS_URL": redis.url, **ENVIRONMENT}
        self.worker = Process(command, env, directory / "worker.log")

    def engine_pid(self) -> int:
        """Of the engine that was started last."""
        found = re.findall(r'"pid":(\d+)', self.worker.log_text())
        return int(found[-1])


class Pool:
    """The pool that the replica joins, as gateways see it."""

    def __init__(self, server: RunningServer, redis: Redis) -> None:
        self.server = server
        self._replicas = Replicas(redis.execute_command, lease_seconds=3.0)

    async def replica(self) -> Announcement | None:
        """The one replica."""
        heard = await self._replicas.live("drill")
        return heard[0].announcement if heard else None

    async def until(self, state: str, restarts: int, seconds: float, worker: Process) -> None:
        """Until the replica is in a state."""

        async def reached() -> bool:
            assert worker.running(), worker.log_text()[-3000:]
            told = await self.replica()
            return told is not None and (told.state, told.restarts) == (state, restarts)

        await eventually_async(reached, seconds, 0.05)


@pytest.fixture
async def pool(valkey_server: Callable[[], RunningServer]) -> AsyncIterator[Pool]:
    """A pool in a Valkey of its own."""
    server = valkey_server()
    async with Redis.from_url(server.url) as redis:
        yield Pool(server, redis)


async def stream(session: aiohttp.ClientSession, url: str, begun: asyncio.Event) -> str:
    """One long streamed answer; gives its finish reason."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "tell me a long story"}],
        "max_tokens": TOKENS,
        "stream": True,
    }
    reason = "none"
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                begun.set()
                for choice in json.loads(line[6:])["choices"]:
                    reason = choice["finish_reason"] or reason
    return reason


async def test_a_replica_joins_survives_its_engine_and_drains_under_load(
    vllm_python: Path, tiny_model: Path, pool: Pool, tmp_path: Path
) -> None:
    replica = Replica(vllm_python, tiny_model, pool.server, tmp_path)
    worker = replica.worker
    worker.start()
    try:
        await pool.until("ready", 0, 300.0, worker)
        told = await pool.replica()
        assert told is not None
        assert told.limits.kv_blocks
        assert told.limits.block_size
        os.kill(replica.engine_pid(), signal.SIGKILL)
        await pool.until("joining", 1, 2.0, worker)
        await pool.until("ready", 1, 300.0, worker)
        begun = [asyncio.Event() for _ in range(STREAMS)]
        async with aiohttp.ClientSession() as session:
            streams = [asyncio.create_task(stream(session, replica.url, each)) for each in begun]
            await asyncio.gather(*(each.wait() for each in begun))
            worker.terminate()
            await pool.until("draining", 1, 5.0, worker)
            assert await asyncio.gather(*streams) == ["length"] * STREAMS
        assert await asyncio.to_thread(worker.wait, 60) == ExitCode.STOPPED
        assert await pool.replica() is None
    finally:
        worker.kill()


async def test_corrupted_weights_never_reach_the_engine(
    vllm_python: Path, tiny_model: Path, pool: Pool, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(tiny_model, weights)
    replica = Replica(vllm_python, weights, pool.server, tmp_path)
    file = weights / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    replica.worker.start()
    assert await asyncio.to_thread(replica.worker.wait, 60) == ExitCode.WEIGHTS_REFUSED
    assert "`model.safetensors` has another SHA-256" in replica.worker.log_text()
    assert "engine started" not in replica.worker.log_text()
