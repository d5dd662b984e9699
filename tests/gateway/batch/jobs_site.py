"""A database with a team, and batches of it, without a gateway in front."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from sluice.gateway.batch.batches import Batch, Batches, BatchQuota, NewBatch
from sluice.gateway.batch.files import NewFile, begin
from sluice.gateway.batch.lines import Scan
from sluice.gateway.batch.storage import Storage
from sluice.gateway.secrets import key_hash
from sluice.gateway.tenancy.first_keys import FirstKeys
from sluice.gateway.tenancy.limits import Priority
from tests.harness.gateway import TEAM_KEY


def chat_lines(count: int, model: str = "sim", prompt: str = "Say something") -> bytes:
    """An input file with so many chat requests."""
    return b"".join(
        json.dumps(
            {
                "custom_id": f"request-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "max_tokens": 8,
                    "messages": [{"role": "user", "content": f"{prompt} {number}"}],
                },
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


async def in_one_part(text: bytes) -> AsyncIterator[bytes]:
    """A text as a stream."""
    yield text


class JobsSite:
    """Makes teams and batches; reads what became of them."""

    def __init__(self, pool: asyncpg.Pool, storage: Storage) -> None:
        self.pool = pool
        self.storage = storage
        self.batches = Batches(pool, BatchQuota(1_000, 1_000_000))

    async def team(self, key: str = TEAM_KEY) -> tuple[UUID, UUID]:
        """The first team and its key, made if they are not there."""
        await FirstKeys(self.pool).team_key(key, 64)
        row = await self.pool.fetchrow(
            "SELECT id, team_id FROM api_keys WHERE hash = $1", key_hash(key)
        )
        assert row is not None
        return row["team_id"], row["id"]

    async def other_team(self, name: str) -> tuple[UUID, UUID]:
        """One more team, as a copy of the first one, with no key that works."""
        team_id, key_id = await self.team()
        new: UUID = await self.pool.fetchval(
            "INSERT INTO teams SELECT (jsonb_populate_record(t, jsonb_build_object("
            "'id', gen_random_uuid(), 'name', $2::text))).* FROM teams t WHERE id = $1"
            " RETURNING id",
            team_id,
            name,
        )
        return new, key_id

    async def submit(
        self,
        text: bytes,
        owner: tuple[UUID, UUID] | None = None,
        window: timedelta = timedelta(hours=24),
        priority: Priority = "normal",
        lost: bool = False,
    ) -> Batch:
        """A batch of an input file's text; `lost`: whose object is there no more."""
        team_id, key_id = owner or await self.team()
        scan = Scan(1 << 24, keep=True)
        scan.feed(text)
        endpoint, model = scan.end()
        async with self.pool.acquire() as connection:
            id, path = await begin(connection, team_id)
        if not lost:
            await self.storage.write(path, in_one_part(text))
        upload = NewFile(id, team_id, key_id, "batch", "in.jsonl", len(text), path)
        new = NewBatch(team_id, key_id, endpoint.value, model, window, priority)
        return await self.batches.submit(new, scan.items, upload)

    async def batch(self, id: UUID) -> dict[str, Any]:
        """A batch's row."""
        row = await self.pool.fetchrow("SELECT * FROM batches WHERE id = $1", id)
        assert row is not None
        return dict(row.items())

    async def results(self, id: UUID) -> list[dict[str, Any]]:
        """The results of a batch, by line."""
        rows = await self.pool.fetch(
            "SELECT result FROM batch_results WHERE batch_id = $1 ORDER BY line", id
        )
        return [json.loads(row["result"]) for row in rows]

    async def file_lines(self, id: UUID | None) -> Sequence[dict[str, Any]]:
        """What is in a file."""
        if id is None:
            return []
        row = await self.pool.fetchrow("SELECT object, bytes FROM files WHERE id = $1", id)
        assert row is not None
        text = await self.storage.range(row["object"], 0, row["bytes"])
        return [json.loads(line) for line in text.splitlines()]
