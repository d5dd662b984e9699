"""The front doors of files and batches in this process, over a real database and a real folder."""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import httpx2
from openai import AsyncOpenAI

from sluice.gateway.app import create_app
from sluice.gateway.auth import KeyRing
from sluice.gateway.batch.doors import create_batch_doors
from sluice.gateway.batch.ids import private_id
from sluice.gateway.batch.storage import Storage
from sluice.gateway.batch.sweeper import FileSweeper
from sluice.gateway.metrics import Metrics
from sluice.gateway.quotas.admission import Admission
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.counted_calls import CountedCalls
from sluice.gateway.settings import Config
from sluice.gateway.tenancy.changes import Changes
from sluice.gateway.wiring import create_catalog
from tests.harness.fixtures import model
from tests.harness.tenants import Tenants

BODY = {"model": "simulated", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}


def request_line(custom_id: str, **changes: Any) -> dict[str, Any]:
    """A line of an input; a change to None takes a member out."""
    whole = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": BODY,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def jsonl(*lines: dict[str, Any]) -> bytes:
    """Lines as a file."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


GOOD = jsonl(request_line("a"), request_line("b"), request_line("c"))


def doors_config(**batch: Any) -> Config:
    """`simulated`, `interactive-only` and `elsewhere`; limits are small."""
    served = {"provider": "sim", "model": "sim"}
    return Config.model_validate(
        {
            "providers": {"sim": {"kind": "simulator"}},
            "models": [
                model("simulated", served),
                model("elsewhere", served),
                model("interactive-only", served, tiers=["interactive"]),
                model("chat-only", served, capabilities=["chat"]),
            ],
            "server": {"max_body_bytes": 100_000},
            "egress": {"allow_networks": ["127.0.0.0/8"]},
            "batch": {"max_file_bytes": 300_000, **batch},
        }
    )


class DoorsSite:
    """Teams in front of the doors.

    Attributes:
        app: the application.
        http: a bare client without a key.
    """

    def __init__(self, pool: asyncpg.Pool, folder: Path, **batch: Any) -> None:
        self.pool = pool
        self.folder = folder
        self.storage = Storage(folder)
        self._ring = KeyRing()
        self._tenants = Tenants(pool)
        self._teams: list[uuid.UUID] = []
        config = doors_config(**batch)
        access, without_limits = Access(self._ring), cast("Admission", None)
        doors = create_batch_doors(
            config,
            self.storage,
            pool,
            create_catalog(config),
            lambda name, team: "auto" if name == "auto" else None,
            access,
            CountedCalls(access, without_limits, Metrics()),
        )
        self.sweeper: FileSweeper = doors.sweeper
        with warnings.catch_warnings():  # of how the handlers declare their parameters
            warnings.simplefilter("ignore", DeprecationWarning)
            self.app: Any = create_app(doors.routes)
        self.http = self._client()

    def _client(self, **given: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app), base_url="http://gateway", **given
        )

    async def key(self, team: str = "team", **limits: Any) -> str:
        """A new key of a new team."""
        made = await self._tenants.team(f"{team}-{uuid.uuid4().hex}", **limits)
        self._teams.append(made.id)
        _, key = await self._tenants.key(made)
        self._ring.apply(await Changes(self.pool).keys(0))
        return key

    def sdk(self, key: str) -> AsyncOpenAI:
        """The official SDK, unmodified, with a key."""
        return AsyncOpenAI(
            api_key=key, base_url="http://gateway/v1", max_retries=0, http_client=self._client()
        )

    def bare(self, key: str) -> httpx2.AsyncClient:
        """A bare client with a key."""
        return self._client(headers={"authorization": f"Bearer {key}"})

    def objects(self) -> list[Path]:
        """What is in the folder."""
        return [path for path in self.folder.rglob("*") if path.is_file()]

    async def counts(self) -> tuple[int, int, int]:
        """How many files, batches and items its teams have."""
        row = await self.pool.fetchrow(
            "SELECT (SELECT count(*) FROM files WHERE deleted_at IS NULL AND team_id = ANY($1))"
            " AS files, count(DISTINCT b.id) AS batches, count(i) AS items"
            " FROM batches b LEFT JOIN batch_items i ON i.batch_id = b.id WHERE team_id = ANY($1)",
            self._teams,
        )
        assert row is not None
        return row["files"], row["batches"], row["items"]

    async def answer(self, batch_id: str, line: int, ok: bool = True) -> None:
        """What the engine does when an item is done."""
        id = private_id("batch_", batch_id)
        result = json.dumps({"id": f"batch_req_{line}", "custom_id": str(line), "error": None})
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT 1 FROM batches WHERE id = $1 FOR UPDATE", id)
            await connection.execute(
                "INSERT INTO batch_results (batch_id, line, ok, result) VALUES ($1, $2, $3, $4)",
                *(id, line, ok, result),
            )
            column = "completed" if ok else "failed"
            await connection.execute(
                f"UPDATE batches SET {column} = {column} + 1, cost_nano_usd = cost_nano_usd + 1500"
                " WHERE id = $1",
                id,
            )

    async def end(self, batch_id: str, status: str = "completed") -> None:
        """What the engine does when a batch is done."""
        id = private_id("batch_", batch_id)
        await self.pool.execute(
            f"UPDATE batches SET status = $2, {status}_at = now() WHERE id = $1", id, status
        )


@asynccontextmanager
async def doors_site(url: str, folder: Path, **batch: Any) -> AsyncIterator[DoorsSite]:
    """A site over a migrated database, with teams of its own."""
    async with asyncpg.create_pool(url, min_size=1, max_size=8) as pool:
        site = DoorsSite(pool, folder, **batch)
        async with site.http:
            yield site
