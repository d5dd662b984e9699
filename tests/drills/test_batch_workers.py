"""`kill -9` of batch workers, and restarts of what they stand on: each item has one result and is
charged once. `SLUICE_DRILL_ITEMS=10000` makes it the long one."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
import yaml

from sluice.gateway.batch.storage import Storage
from sluice.migrations import migrate
from tests.drills.books import Books
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.harness.gateway import TEAM_KEY, Process, sluice
from tests.harness.polling import eventually
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

ITEMS = int(os.environ.get("SLUICE_DRILL_ITEMS", "1200"))
WORKERS = 3
KILL_SECONDS = 4.0 if ITEMS < 10_000 else 5.0

#: An item takes half a second, so that killed workers have many in hand.
CONFIG: dict[str, Any] = {
    "providers": {"sim": {"kind": "simulator", "ttft_ms": 500, "itl_ms": 10}},
    "models": [
        {
            "name": "sim",
            "context_length": 8192,
            "capabilities": ["chat"],
            "price": {"input_per_mtok": "3", "output_per_mtok": "15"},
            "deployments": [{"provider": "sim", "model": "sim"}],
        }
    ],
    "batch": {
        "workers": {
            "max_concurrent": 16 if ITEMS < 10_000 else 64,
            "lease_seconds": 3 if ITEMS < 10_000 else 15,
        }
    },
    "server": {"drain_seconds": 3},
}

T = TypeVar("T")


class Workers(Books):
    """Three workers on servers of their own."""

    def __init__(self, postgres: RunningServer, valkey: RunningServer, directory: Path) -> None:
        super().__init__(postgres.url, valkey.url, directory / "spool")
        self.postgres = postgres
        self.valkey = valkey
        self.files = directory / "files"
        config = directory / "sluice.yaml"
        config.write_text(yaml.safe_dump(CONFIG))
        env = {
            "SLUICE_DATABASE_URL": postgres.url,
            "SLUICE_REDIS_URL": valkey.url,
            "SLUICE_BOOTSTRAP_KEY": TEAM_KEY,
            "SLUICE_SPOOL_DIR": str(self.spool),
            "SLUICE_FILES_DIR": str(self.files),
        }
        command = sluice("batch", "--config", str(config))
        self.processes = [
            Process(command, env, directory / f"worker-{number}.log") for number in range(WORKERS)
        ]

    def start(self) -> None:
        asyncio.run(migrate(self.postgres.url))
        for process in self.processes:
            process.start()

    def close(self) -> None:
        for process in self.processes:
            process.kill()

    def on_site(self, work: Callable[[JobsSite], Awaitable[T]]) -> T:
        """Do something with the database and the files."""

        async def connected() -> T:
            async with asyncpg.create_pool(self.postgres.url, min_size=1, max_size=2) as pool:
                return await work(JobsSite(pool, Storage(self.files)))

        return asyncio.run(connected())

    def submit(self, items: int) -> UUID:
        """A batch of a team that has limits, so that Redis is asked as well."""

        async def work(site: JobsSite) -> UUID:
            team, _ = await site.team()
            await site.pool.execute(
                "UPDATE teams SET limits = jsonb_build_object('tokens_per_minute', 2000000000)"
                " WHERE id = $1",
                team,
            )
            return (await site.submit(chat_lines(items))).id

        return self.on_site(work)

    def batch(self, id: UUID) -> dict[str, Any]:
        return self.on_site(lambda site: site.batch(id))

    def progress(self, id: UUID) -> int:
        row = self.batch(id)
        return int(row["completed"] + row["failed"])


@pytest.fixture
def workers(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> Iterator[Workers]:
    site = Workers(postgres_server(), valkey_server(), tmp_path)
    try:
        site.start()
        yield site
    finally:
        site.close()


def test_workers_are_killed_and_servers_restarted(workers: Workers) -> None:
    batch = workers.submit(ITEMS)
    began = time.monotonic()
    eventually(lambda: workers.progress(batch) > 0, 30)
    draw, kills, restarts = random.Random(7), 0, 0
    while (done := workers.progress(batch)) < ITEMS:
        time.sleep(KILL_SECONDS)
        victim = draw.choice(workers.processes)
        victim.kill()
        kills += 1
        victim.start()
        if restarts == 0 and done > ITEMS * 0.2:
            workers.postgres.stop()
            workers.postgres.start()
            restarts += 1
        elif restarts == 1 and done > ITEMS * 0.5:
            workers.valkey.stop()
            workers.valkey.start()
            restarts += 1
        assert time.monotonic() - began < 600
    eventually(lambda: workers.batch(batch)["status"] == "completed", 30, 0.2)
    print(f"\n{ITEMS} items: {kills} workers killed, {time.monotonic() - began:.0f} s;", end=" ")
    assert restarts == 2
    check(workers, batch)


def check(workers: Workers, batch: UUID) -> None:
    """One result and one usage record for each item, and they agree."""

    async def read(site: JobsSite) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
        row = await site.batch(batch)
        lines = list(await site.file_lines(row["output_file"]))
        return row, lines, await site.pool.fetch("SELECT * FROM usage_records")

    row, lines, records = workers.on_site(read)
    assert (row["completed"], row["failed"], row["total"]) == (ITEMS, 0, ITEMS)
    named = Counter(line["custom_id"] for line in lines)
    assert len(named) == len(lines) == ITEMS
    charged = {str(record["request_id"]): record for record in records}
    assert len(charged) == len(records) == ITEMS
    for line in lines:
        record = charged[line["response"]["request_id"]]
        usage = line["response"]["body"]["usage"]
        assert (record["input_tokens"], record["output_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
    assert sum(record["cost_nano_usd"] for record in records) == row["cost_nano_usd"]
    (daily,) = workers.query(
        "SELECT sum(requests)::int, sum(cost_nano_usd)::bigint FROM usage_daily"
    )
    assert tuple(daily) == (ITEMS, row["cost_nano_usd"])
    (lost,) = workers.query("SELECT count(*) FILTER (WHERE losses > 0)::int FROM batch_items")
    print(f"{lost[0]} items ran again, {len(records)} records, 0 lost, 0 doubled")
