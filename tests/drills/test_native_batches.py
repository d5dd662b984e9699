"""`kill -9` of a batch worker at the worst moments of its dealings with providers: what is there
already is not handed over again, and what came of it is charged once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from aiohttp import web

from sluice.gateway.batch.batches import Batch
from sluice.gateway.batch.native.watcher import GROUP
from sluice.gateway.batch.storage import Storage
from sluice.migrations import migrate
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.gateway.batch.native_site import ITEM_NANO_USD
from tests.harness.gateway import TEAM_KEY, Process, sluice
from tests.harness.polling import eventually_async
from tests.harness.provider_batches import AnthropicProvider, Held, OpenAIProvider
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

#: More than are written down at a time.
ITEMS = GROUP * 2 + 50

#: The calls that make a batch.
MAKING = (("POST", "/v1/batches"), ("POST", "/v1/messages/batches"))

NATIVE = {"min_items": 3, "poll_seconds": 1}


def config(openai: OpenAIProvider, anthropic: AnthropicProvider) -> dict[str, Any]:
    """`gpt` and `claude`, each behind the provider that has such batches."""
    urls = {"openai": openai.url, "anthropic": anthropic.url}
    names = {"gpt": "openai", "claude": "anthropic"}
    return {
        "providers": {
            kind: {"kind": kind, "base_url": url, "api_key": "key", "native_batch": NATIVE}
            for kind, url in urls.items()
        },
        "models": [
            {
                "name": name,
                "context_length": 100_000,
                "capabilities": ["chat"],
                "price": {"input_per_mtok": "3", "output_per_mtok": "15"},
                "deployments": [{"provider": provider, "model": f"upstream-{name}"}],
            }
            for name, provider in names.items()
        ],
    }


class HalfRead(OpenAIProvider):
    """Gives out the first half of results, and the rest only to who comes again.

    Attributes:
        half: is called when the half is out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.half: Callable[[], Any] | None = None

    async def _content(self, request: web.Request) -> web.StreamResponse:
        if self.half is None:
            return await super()._content(request)
        lines = self.files[request.match_info["id"]].splitlines(keepends=True)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(lines[: GROUP + 20]))
        await self.half()
        return response


class Drill:
    """A worker, and both providers."""

    def __init__(self, jobs: JobsSite, worker: Process) -> None:
        self.jobs = jobs
        self.worker = worker
        self.openai, self.anthropic = HalfRead(), AnthropicProvider()
        self.kills = 0

    def kill(self) -> None:
        """`kill -9`, now."""
        self.worker.kill()
        self.kills += 1

    def kill_when_both_are_made(self) -> None:
        """Kill it when both have been made, and before it hears so of either."""
        made: set[str] = set()
        dead = asyncio.Event()

        async def seen(request: web.Request) -> None:
            if (request.method, request.path) not in MAKING:
                return
            made.add(request.path)
            if len(made) == len(MAKING):
                self.openai.done = self.anthropic.done = None
                self.kill()
                dead.set()
            await dead.wait()

        self.openai.done = self.anthropic.done = seen

    async def killed(self, times: int) -> None:
        """Wait until the worker was killed so many times, and start another, which need not wait
        until the dead one is given up."""

        async def dead() -> bool:
            return self.kills == times

        await eventually_async(dead, 30)
        await self.jobs.pool.execute(
            "UPDATE native_batches SET next_at = now() WHERE state <> 'done'"
        )
        self.worker.start()

    async def results(self) -> int:
        count: int = await self.jobs.pool.fetchval("SELECT count(*) FROM batch_results")
        return count

    async def submitted(self) -> None:
        """Wait until the records have both."""

        async def recorded() -> bool:
            states = await self.jobs.pool.fetch("SELECT state FROM native_batches")
            return [row["state"] for row in states] == ["submitted"] * 2

        await eventually_async(recorded, 30)

    async def ended(self, batch: Batch) -> dict[str, Any]:
        """Wait until a batch has ended."""

        async def completed() -> dict[str, Any] | None:
            row = await self.jobs.batch(batch.id)
            return row if row["status"] == "completed" else None

        row = await eventually_async(completed, 30)
        assert row is not None
        return row


@pytest.fixture
async def drill(database: str, valkey: RunningServer, tmp_path: Path) -> AsyncIterator[Drill]:
    path = tmp_path / "sluice.yaml"
    env = {
        "SLUICE_DATABASE_URL": database,
        "SLUICE_REDIS_URL": valkey.url,
        "SLUICE_BOOTSTRAP_KEY": TEAM_KEY,
        "SLUICE_SPOOL_DIR": str(tmp_path / "spool"),
        "SLUICE_FILES_DIR": str(tmp_path / "files"),
    }
    worker = Process(sluice("batch", "--config", str(path)), env, tmp_path / "worker.log")
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=4) as pool:
        drill = Drill(JobsSite(pool, Storage(tmp_path / "files")), worker)
        providers = (drill.openai, drill.anthropic)
        for provider in providers:
            await provider.server.start_server()
        path.write_text(yaml.safe_dump(config(drill.openai, drill.anthropic)))
        await drill.jobs.team()
        yield drill
        worker.kill()
        for provider in providers:
            await provider.server.close()


async def test_a_worker_is_killed_while_it_deals_with_providers(drill: Drill) -> None:
    openai, anthropic = drill.openai, drill.anthropic

    batches = [await drill.jobs.submit(chat_lines(ITEMS, name)) for name in ("gpt", "claude")]
    drill.kill_when_both_are_made()
    drill.worker.start()
    await drill.killed(1)  # what was made is not on record

    await drill.submitted()
    made: list[Held] = [openai.batch, anthropic.batch]

    async def half() -> None:
        openai.half = None

        async def written() -> bool:
            return await drill.results() >= GROUP

        await eventually_async(written, 30)
        drill.kill()

    openai.half = half
    openai.end(openai.batch)
    await drill.killed(2)  # between results and their settlement
    assert GROUP <= await drill.results() < ITEMS
    anthropic.end(made[1])

    for batch, held in zip(batches, made, strict=True):
        row = await drill.ended(batch)
        assert len(held.requests) == ITEMS
        assert (row["completed"], row["failed"]) == (ITEMS, 0)
        assert row["cost_nano_usd"] == ITEMS * ITEM_NANO_USD
        lines = await drill.jobs.file_lines(row["output_file"])
        named = Counter(line["custom_id"] for line in lines)
        assert named == {f"request-{number}": 1 for number in range(ITEMS)}
    check_dealings(*openai.calls, *anthropic.calls)
    await check_books(drill.jobs.pool)


def check_dealings(*calls: tuple[str, str]) -> None:
    """Nothing was handed over again that was there, and nothing was called live."""
    counted = Counter(calls)
    assert [counted[making] for making in MAKING] == [1, 1]
    assert not [path for _, path in calls if path.endswith(("/completions", "/messages"))]


async def check_books(pool: asyncpg.Pool) -> None:
    """Each item is charged once, at the discount."""
    records = await pool.fetch("SELECT cost_nano_usd, attempt_log FROM usage_records")
    assert len(records) == 2 * ITEMS
    assert {record["cost_nano_usd"] for record in records} == {ITEM_NANO_USD}
    assert all("native_batch" in record["attempt_log"] for record in records)
    [daily] = await pool.fetch(
        "SELECT sum(requests)::int AS requests, sum(cost_nano_usd)::bigint AS cost FROM usage_daily"
    )
    assert tuple(daily) == (2 * ITEMS, 2 * ITEMS * ITEM_NANO_USD)
