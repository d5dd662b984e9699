"""What a team may have on record: calls that make and unmake are bounded as well."""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.gateway.batch.doors_site import GOOD, DoorsSite, doors_site


def check_refused(answer: httpx2.Response, code: str, *said: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
    assert answer.headers["x-should-retry"] == "false"
    for text in said:
        assert text in answer.json()["error"]["message"]


async def loop_once(caller: httpx2.AsyncClient) -> httpx2.Response:
    """Submit a batch and unmake it, as far as that goes."""
    made = await caller.post("/v1/batch", content=GOOD)
    if made.status_code == 200:
        job = made.json()
        await caller.post(f"/v1/batch/{job['batch_id']}/cancel")
    return made


async def unmade(site: DoorsSite, caller: httpx2.AsyncClient) -> None:
    """What the engine does, and the tenant after it."""
    for job in (await caller.get("/v1/batch")).json()["data"]:
        await site.end(job["batch_id"], "cancelled")
        await caller.delete(f"/v1/files/{job['input_file_id']}")


async def test_batches_count_until_their_records_go(doors_database: str, tmp_path: Path) -> None:
    async with (
        doors_site(doors_database, tmp_path, team_batches=2, record_days=1) as site,
        site.bare(await site.key()) as caller,
    ):
        file = {"file": ("a.jsonl", GOOD)}
        held = (await caller.post("/v1/files", data={"purpose": "batch"}, files=file)).json()
        for _ in range(2):
            assert (await loop_once(caller)).status_code == 200
        await unmade(site, caller)
        before = len(site.objects())
        check_refused(await loop_once(caller), "batch_quota_exceeded", "2 batches")
        body = {
            "input_file_id": held["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        check_refused(await caller.post("/v1/batches", json=body), "batch_quota_exceeded")
        listed = await caller.post("/v1/batch", json={"requests": [{"model": "simulated"}]})
        check_refused(listed, "batch_quota_exceeded")
        assert len(site.objects()) == before
        async with site.bare(await site.key("other")) as others:
            assert (await loop_once(others)).status_code == 200
        await site.pool.execute("UPDATE batches SET cancelled_at = now() - interval '2 days'")
        await site.sweeper.sweep()
        assert (await loop_once(caller)).status_code == 200


async def test_requests_count_in_all_batches_together(doors_database: str, tmp_path: Path) -> None:
    async with (
        doors_site(doors_database, tmp_path, team_requests=7) as site,
        site.bare(await site.key()) as caller,
    ):
        for _ in range(2):
            assert (await loop_once(caller)).status_code == 200
        check_refused(await loop_once(caller), "batch_quota_exceeded", "7 requests in batches")
        assert (len(site.objects()), await site.counts()) == (2, (2, 2, 6))
        one = await caller.post("/v1/batch", content=GOOD.splitlines(keepends=True)[0])
        assert one.status_code == 200


async def test_files_count_while_a_batch_names_them(doors_database: str, tmp_path: Path) -> None:
    async with (
        doors_site(doors_database, tmp_path, team_files=2) as site,
        site.bare(await site.key()) as caller,
    ):

        async def upload() -> httpx2.Response:
            return await caller.post(
                "/v1/files", data={"purpose": "user_data"}, files={"file": ("a", b"x")}
            )

        assert (await loop_once(caller)).status_code == 200
        await unmade(site, caller)  # its record still names the file
        made = (await upload()).json()
        check_refused(await upload(), "file_quota_exceeded", "2 files", "Delete some")
        await caller.delete(f"/v1/files/{made['id']}")
        await site.sweeper.sweep()
        assert (await upload()).status_code == 200


async def test_a_sweep_does_all_that_is_due(doors_database: str, tmp_path: Path) -> None:
    async with doors_site(doors_database, tmp_path) as site:
        team = await site.key("many")
        assert team
        await site.pool.execute(
            "INSERT INTO files (id, team_id, purpose, filename, bytes, object, deleted_at,"
            " removed_at) SELECT gen_random_uuid(), (SELECT id FROM teams LIMIT 1), 'user_data',"
            " 'many', 0, '', now(), now() FROM generate_series(1, 250)"
        )
        await site.sweeper.sweep()
        left = await site.pool.fetchval("SELECT count(*) FROM files WHERE filename = 'many'")
        assert left == 0
