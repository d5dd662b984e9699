"""A worker with a fake engine, beside a real Valkey."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluice.backends.replicas import Announcement, Replicas
from sluice.backends.worker.client import EngineClient
from sluice.backends.worker.command import engine_command, engine_environment
from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.lease import Lease
from sluice.backends.worker.manifest import manifest_of
from sluice.backends.worker.model import ServedModel
from sluice.backends.worker.restarts import RestartPolicy
from sluice.backends.worker.vitals import Patience
from sluice.backends.worker.watch import WatchConfig
from sluice.backends.worker.worker import ExitCode, StopRequest, Worker, WorkerConfig
from tests.backends.worker import fake_engine
from tests.harness.gateway import free_port
from tests.harness.polling import eventually_async
from tests.servers import RunningServer

FAST = WatchConfig(
    start=20.0,
    reading_every=0.03,
    probe_every=0.05,
    probe_limit=1.0,
    patience=Patience(silent=0.3, hung=1.0),
)


def alive(pid: int) -> bool:
    """Whether a process is there and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Site:
    """One worker, its engine, and the pool as gateways see it."""

    def __init__(self, directory: Path, redis_url: str, stack: AsyncExitStack) -> None:
        self.directory = directory
        self.redis_url = redis_url
        self.stack = stack
        self.port = free_port()
        self.pool = f"pool-{uuid.uuid4()}"
        self.weights = directory / "weights"
        self.weights.mkdir()
        (self.weights / "config.json").write_text("{}")
        (self.weights / "model.safetensors").write_bytes(b"weights" * 100_000)
        self.journal = directory / "journal"
        self.model = ServedModel(
            name="fake",
            version="1",
            pool=self.pool,
            weights=str(self.weights),
            manifest=manifest_of(self.weights),
            context_length=2048,
            stage="prod",
        )
        self.engine_options: list[str] = ["--journal", str(self.journal)]
        self.stop = StopRequest()
        self.task: asyncio.Task[ExitCode] | None = None
        redis = Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0))
        stack.push_async_callback(redis.aclose)
        # A machine under load may be slower than a lease, and the tests read what was told last.
        self.replicas = Replicas(redis.execute_command, lease_seconds=60.0)
        self.pool_as_read = Replicas(redis.execute_command)

    @property
    def program(self) -> list[str]:
        """What starts the fake engine."""
        return [sys.executable, fake_engine.__file__]

    def config(self, **changes: Any) -> WorkerConfig:
        """A worker's, in a hurry."""
        command = engine_command(
            self.program, self.model, self.weights, "127.0.0.1", self.port, self.engine_options
        )
        fast = WorkerConfig(
            command=command,
            environment=engine_environment({}),
            weights=self.weights,
            watch=FAST,
            restarts=RestartPolicy(first=0.01, longest=0.05, attempts=3, forgive_after=0.2),
            linger=0.05,
            drain=10.0,
            grace=5.0,
        )
        return replace(fast, **changes)

    def run(self, gpu: GpuMemory | None = None, **changes: Any) -> asyncio.Task[ExitCode]:
        """Start the worker, with changes of its configuration."""
        redis = Redis.from_url(self.redis_url, retry=Retry(NoBackoff(), 0))
        client = EngineClient(
            f"http://127.0.0.1:{self.port}", "fake", embeds=False, priorities=True
        )
        self.stack.push_async_callback(redis.aclose)
        self.stack.push_async_callback(client.close)
        announcement = Announcement(
            id=str(uuid.uuid4()),
            pool=self.pool,
            url=f"http://127.0.0.1:{self.port}",
            model="fake",
            version="1",
            state="joining",
            since=time.time(),
        )
        lease = Lease(Replicas(redis.execute_command), announcement, beat_seconds=0.05)
        worker = Worker(self.model, self.config(**changes), lease, client, self.stop, gpu)
        self.task = asyncio.create_task(worker.run())
        return self.task

    async def announced(self) -> Announcement | None:
        """What gateways read of the replica now."""
        heard = await self.replicas.live(self.pool)
        return heard[0].announcement if heard else None

    async def until(self, wanted: Callable[[Announcement], bool]) -> Announcement:
        """What is announced, as soon as it is as wanted."""

        async def probe() -> Announcement | None:
            announced = await self.announced()
            return announced if announced is not None and wanted(announced) else None

        found = await eventually_async(probe, 60.0)
        assert found is not None
        return found

    async def until_ready(self, restarts: int = 0) -> Announcement:
        """Until the replica takes requests, with an engine that was restarted so often."""
        return await self.until(lambda each: each.state == "ready" and each.restarts == restarts)

    async def tell(self, **state: Any) -> None:
        """Make the engine do something."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.port}/fake", json=state) as response,
        ):
            assert response.status == 200

    def starts(self) -> list[tuple[int, int]]:
        """Process ids of each start: the engine's, and its child's."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_text().splitlines()
        return [(int(engine), int(child)) for engine, child in map(str.split, lines)]

    async def nothing_left(self) -> bool:
        """Whether all processes of all engines are gone."""
        return not any(alive(pid) for pids in self.starts() for pid in pids)


@pytest.fixture
async def site(tmp_path: Path, valkey: RunningServer) -> AsyncIterator[Site]:
    """A site whose worker, if it runs at the end, is stopped; no process is ever left."""
    async with AsyncExitStack() as stack:
        made = Site(tmp_path, valkey.url, stack)
        yield made
        if made.task is not None and not made.task.done():
            made.stop.signal()
            made.stop.signal()
            await made.task
        await eventually_async(made.nothing_left)
