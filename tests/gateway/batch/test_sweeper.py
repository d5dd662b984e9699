"""What is swept, and what stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.gateway.batch.files import Files, OverQuota
from sluice.gateway.batch.ids import private_id
from sluice.gateway.batch.sweeper import FileSweeper
from tests.gateway.batch.doors_site import GOOD, DoorsSite, doors_site

DAY = timedelta(days=1)


@pytest.fixture
async def site(doors_database: str, tmp_path: Path) -> AsyncIterator[DoorsSite]:
    async with doors_site(doors_database, tmp_path) as site:
        await site.pool.execute("TRUNCATE files, batches CASCADE")
        yield site


def sweeper(site: DoorsSite, keep: timedelta = DAY) -> FileSweeper:
    return FileSweeper(site.pool, site.storage, keep, grace=timedelta(0))


async def one(part: bytes) -> AsyncIterator[bytes]:
    yield part


async def records(site: DoorsSite) -> int:
    count: int = await site.pool.fetchval("SELECT count(*) FROM files")
    return count


async def test_expired_contents_go(site: DoorsSite) -> None:
    sdk = site.sdk(await site.key())
    made = [await sdk.files.create(file=("a", b"x"), purpose="user_data") for _ in range(2)]
    await site.pool.execute(
        "UPDATE files SET expires_at = now() - interval '1 minute' WHERE id = $1",
        private_id("file-", made[1].id),
    )
    await site.sweeper.sweep()  # somebody may be reading it
    assert (len(site.objects()), await records(site)) == (2, 2)
    await sweeper(site).sweep()
    assert (len(site.objects()), await records(site)) == (1, 1)
    assert [file.id async for file in sdk.files.list()] == [made[0].id]


async def test_an_upload_whose_gateway_died_goes(site: DoorsSite) -> None:
    await site.key()
    team = await site.pool.fetchval("SELECT max(id::text)::uuid FROM teams")
    room = await Files(site.pool, 10, 10).reserve(team, 7, 100, None)
    await site.storage.write(room.object, one(b"x"))
    with pytest.raises(OverQuota):
        await Files(site.pool, 10, 10).reserve(team, 7, 100, None)
    await sweeper(site).sweep()
    assert (site.objects(), await records(site)) == ([], 0)
    await Files(site.pool, 10, 10).reserve(team, 7, 100, None)


async def test_an_open_batch_keeps_its_input(site: DoorsSite) -> None:
    async with site.bare(await site.key()) as http:
        id = (await http.post("/v1/batch", content=GOOD)).json()["batch_id"]
        await site.pool.execute("UPDATE files SET expires_at = now() - interval '1 minute'")
        await sweeper(site).sweep()
        assert len(site.objects()) == 1
        await site.end(id)
        await sweeper(site).sweep()
        assert site.objects() == []
        assert (await http.get(f"/v1/batch/{id}")).status_code == 200


async def test_batches_are_forgotten_after_a_while(site: DoorsSite) -> None:
    async with site.bare(await site.key()) as http:
        for status in ("completed", "expired", "cancelled", None):
            id = (await http.post("/v1/batch", content=GOOD)).json()["batch_id"]
            await site.answer(id, 1)
            if status is not None:
                await site.end(id, status)
        for _ in range(4):
            await sweeper(site, keep=DAY).sweep()
        assert await site.counts() == (4, 4, 12)
        await sweeper(site, keep=timedelta(0)).sweep()
        assert await site.counts() == (4, 1, 3)
        assert await site.pool.fetchval("SELECT count(*) FROM batch_results") == 1
