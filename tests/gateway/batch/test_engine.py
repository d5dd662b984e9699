"""The engine in this process: from a batch on record to its files, over the scripted upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from sluice.gateway.batch.batches import ENDED
from sluice.gateway.batch.engine import BatchEngine, create_engine
from sluice.gateway.batch.runner import HeldCharges
from sluice.gateway.connections import connect_database, redis_link
from sluice.gateway.environment import Environment
from sluice.gateway.settings import Config
from sluice.gateway.tenancy.keys import Keys
from sluice.gateway.wiring import create_gateway
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.harness.polling import eventually_async
from tests.harness.tenants import BY
from tests.servers import RunningServer

# the application is made with the rest, and not used
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG: dict[str, Any] = {
    "providers": {
        "sim": {"kind": "simulator", "ttft_ms": 2, "itl_ms": 0},
        "slow": {"kind": "simulator", "ttft_ms": 400, "itl_ms": 0},
        "endless": {"kind": "simulator", "ttft_ms": 600_000, "itl_ms": 0},
        "dead": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"},
    },
    "models": [
        {
            "name": name,
            "context_length": 8192,
            "capabilities": ["chat", "completions", "embeddings"],
            "price": {"input_per_mtok": "3", "output_per_mtok": "15", "batch_share": "0.5"},
            "deployments": [{"provider": name, "model": "sim"}],
        }
        for name in ("sim", "slow", "endless", "dead")
    ],
    "dispatch": {"attempts": 1, "breaker": {"min_calls": 1_000_000}},
    "batch": {"workers": {"lease_seconds": 3, "grace_seconds": 0, "attempts": 2}},
}


@pytest.fixture
async def engine(
    jobs_site: JobsSite, database: str, valkey: RunningServer, tmp_path: Path
) -> AsyncIterator[BatchEngine]:
    """A worker, in this process."""
    await jobs_site.team()
    config = Config.model_validate(CONFIG)
    environment = Environment.read(
        {"SLUICE_SPOOL_DIR": str(tmp_path / "spool"), "SLUICE_FILES_DIR": str(tmp_path / "own")}
    )
    charges = HeldCharges()
    pool = await connect_database(database)
    gateway = create_gateway(config, environment, pool, redis_link(valkey.url), charges)
    engine = create_engine(gateway, charges, jobs_site.storage, config.batch)
    await engine.start()
    yield engine
    await engine.stop(1.0)


async def ended(site: JobsSite, id: UUID, seconds: float = 15.0) -> dict[str, Any]:
    """A batch that has ended, with what is in its files."""

    async def over() -> dict[str, Any] | None:
        row = await site.batch(id)
        return row if row["status"] in ENDED else None

    row = await eventually_async(over, seconds)
    assert row is not None
    row["output"] = await site.file_lines(row["output_file"])
    row["errors"] = await site.file_lines(row["error_file"])
    return row


async def records(site: JobsSite) -> list[dict[str, Any]]:
    return [dict(row.items()) for row in await site.pool.fetch("SELECT * FROM usage_records")]


async def test_a_batch_comes_to_its_output_file(jobs_site: JobsSite, engine: BatchEngine) -> None:
    batch = await jobs_site.submit(chat_lines(50))
    row = await ended(jobs_site, batch.id)
    assert (row["status"], row["completed"], row["failed"]) == ("completed", 50, 0)
    assert {line["custom_id"] for line in row["output"]} == {f"request-{n}" for n in range(50)}
    assert row["errors"] == []
    for line in row["output"]:
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["message"]["content"]
    rows = await records(jobs_site)
    asked = {line["response"]["request_id"] for line in row["output"]}
    assert {str(record["request_id"]) for record in rows} == asked
    assert {record["tier"] for record in rows} == {"batch"}
    assert sum(record["cost_nano_usd"] for record in rows) == row["cost_nano_usd"] > 0
    one = rows[0]
    full = one["input_tokens"] * 3_000 + one["output_tokens"] * 15_000
    assert one["cost_nano_usd"] == full // 2
    file = await jobs_site.pool.fetchrow("SELECT * FROM files WHERE id = $1", row["output_file"])
    assert file is not None
    assert (file["purpose"], file["lines"], file["deleted_at"]) == ("batch_output", 50, None)
    assert await jobs_site.pool.fetchval("SELECT sum(requests) FROM usage_daily") == 50


async def test_refused_lines_come_to_the_error_file(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    lines = [json.loads(line) for line in chat_lines(4).splitlines()]
    lines[1]["body"]["messages"] = "none"
    lines[2]["body"]["temperature"] = "warm"
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    row = await ended(jobs_site, (await jobs_site.submit(text)).id)
    assert (row["status"], row["completed"], row["failed"]) == ("completed", 3, 1)
    (error,) = row["errors"]
    assert error["custom_id"] == "request-1"
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "messages"
    assert error["error"] is None
    assert len(await records(jobs_site)) == 3


async def test_a_cancelled_batch_keeps_what_is_done(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    batch = await jobs_site.submit(chat_lines(300, "slow"))

    async def some() -> bool:
        return bool((await jobs_site.batch(batch.id))["completed"])

    await eventually_async(some)
    await jobs_site.batches.cancel(batch.team_id, batch.id)
    row = await ended(jobs_site, batch.id)
    assert row["status"] == "cancelled"
    assert row["completed"] + row["failed"] == 300
    assert len(row["output"]) == row["completed"] > 0
    assert {line["error"]["code"] for line in row["errors"]} == {"batch_cancelled"}
    assert {line["response"] for line in row["errors"]} == {None}
    assert len(await records(jobs_site)) == row["completed"]
    await eventually_async(lambda: nothing_held(engine))


async def test_a_window_that_closes_leaves_the_rest(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    batch = await jobs_site.submit(chat_lines(200, "slow"), window=timedelta(seconds=1.5))
    row = await ended(jobs_site, batch.id)
    assert row["status"] == "expired"
    assert row["expired_at"] >= row["expires_at"]
    assert {line["error"]["code"] for line in row["errors"]} == {"batch_expired"}
    assert len(row["output"]) == row["completed"] > 0
    assert len(row["errors"]) == row["failed"] > 0
    assert row["completed"] + row["failed"] == 200
    assert len(await records(jobs_site)) == row["completed"]


async def test_what_runs_without_end_is_let_go_with_its_batch(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    batch = await jobs_site.submit(chat_lines(2, "endless"))
    await eventually_async(lambda: something_held(engine))
    await jobs_site.batches.cancel(batch.team_id, batch.id)
    row = await ended(jobs_site, batch.id)
    assert (row["status"], row["failed"]) == ("cancelled", 2)
    await eventually_async(lambda: nothing_held(engine))
    assert await records(jobs_site) == []


async def test_a_worker_that_stops_gives_back_what_it_has(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    await jobs_site.submit(chat_lines(3, "endless"))
    await eventually_async(lambda: something_held(engine))
    await engine.worker.drain(0.0, asyncio.Event())
    await engine.worker.stop()
    states = await jobs_site.pool.fetch("SELECT state, attempts, losses FROM batch_items")
    assert {tuple(row) for row in states} == {("pending", 0, 0)}
    assert await records(jobs_site) == []


async def test_a_key_that_is_revoked_pays_for_nothing_more(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    team = await jobs_site.team()
    await jobs_site.pool.execute("UPDATE api_keys SET revoked_at = now() - interval '1 second'")

    async def refused() -> bool:
        return engine.gateway.ring.holder(str(team[1])) is None

    await eventually_async(refused)
    row = await ended(jobs_site, (await jobs_site.submit(chat_lines(2))).id)
    assert row["failed"] == 2
    assert {line["response"]["status_code"] for line in row["errors"]} == {401}


async def test_a_key_that_is_rotated_hands_its_batches_on(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    owner = await jobs_site.team()
    new, _ = await Keys(jobs_site.pool).rotate(owner[1], timedelta(0), BY)

    async def known() -> bool:
        holder = engine.gateway.ring.holder(str(owner[1]))
        return holder is not None and holder.key_id == str(new.id)

    await eventually_async(known)
    row = await ended(jobs_site, (await jobs_site.submit(chat_lines(2), owner)).id)
    assert row["completed"] == 2
    assert {each["key_id"] for each in await records(jobs_site)} == {new.id}


async def test_a_fault_is_tried_again_and_then_told(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    row = await ended(jobs_site, (await jobs_site.submit(chat_lines(1, "dead"))).id)
    (error,) = row["errors"]
    assert error["response"]["status_code"] == 502
    assert error["response"]["body"]["error"]["code"] == "upstream_unreachable"
    rows = await records(jobs_site)
    assert [(each["status"], each["cost_nano_usd"]) for each in rows] == [("error", 0)] * 2
    assert error["response"]["request_id"] == max(str(each["request_id"]) for each in rows)


async def test_what_a_teams_limit_refuses_waits(jobs_site: JobsSite, engine: BatchEngine) -> None:
    team_id, _ = await jobs_site.team()
    limit = "UPDATE teams SET limits = jsonb_build_object('batch_max_concurrent', $2::int)"
    await jobs_site.pool.execute(f"{limit} WHERE id = $1", team_id, 0)

    async def known() -> bool:
        owner = engine.gateway.ring.holder(str((await jobs_site.team())[1]))
        return owner is not None and bool(owner.policy.counted_batch)

    await eventually_async(known)
    batch = await jobs_site.submit(chat_lines(3))

    async def refused() -> bool:
        waiting = "SELECT count(*) FROM batch_items WHERE not_before IS NOT NULL"
        return bool(await jobs_site.pool.fetchval(waiting))

    await eventually_async(refused)
    await jobs_site.pool.execute(f"{limit} WHERE id = $1", team_id, 5)
    row = await ended(jobs_site, batch.id, 30)
    assert (row["completed"], len(await records(jobs_site))) == (3, 3)
    assert await jobs_site.pool.fetchval("SELECT max(attempts) FROM batch_items") == 0


async def test_an_input_that_is_gone_fails_its_lines(
    jobs_site: JobsSite, engine: BatchEngine
) -> None:
    owner = await jobs_site.team()
    batch = await jobs_site.submit(chat_lines(2, "slow"), owner, lost=True)
    row = await ended(jobs_site, batch.id)
    assert {line["error"]["code"] for line in row["errors"]} == {"input_gone"}


async def nothing_held(engine: BatchEngine) -> bool:
    return len(engine.worker) == 0


async def something_held(engine: BatchEngine) -> bool:
    return len(engine.worker) > 0
