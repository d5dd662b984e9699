"""What is swept of decisions and labels, and what stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from pydantic import ValidationError

from sluice.billing.reports import UsageReports
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.retention import RouteSweeper
from sluice.gateway.learning.settings import LearningSettings
from tests.billing.samples import TEAM
from tests.billing.test_decisions import decision
from tests.gateway.learning.samples import record

KEEP = timedelta(days=90)


async def routed(pool: asyncpg.Pool, time: datetime) -> UUID:
    """A request of that time that `auto` routed; its id."""
    random = uuid4().int & ((1 << 62) - 1)
    made = UUID(int=int(time.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | random)  # a UUIDv7
    micros = int(time.timestamp() * 1e6)
    return await record(pool, made, time_us=micros, decision=decision())


async def decided(pool: asyncpg.Pool) -> set[UUID]:
    return {row["request_id"] for row in await pool.fetch("SELECT request_id FROM route_decisions")}


async def labelled(pool: asyncpg.Pool) -> set[UUID]:
    return {row["request_id"] for row in await pool.fetch("SELECT request_id FROM route_labels")}


async def test_what_is_old_goes_and_what_was_saved_stays(pool: asyncpg.Pool) -> None:
    now = datetime.now(UTC)
    old, young = now - KEEP - timedelta(days=2), now - KEEP + timedelta(days=2)
    gone, kept = await routed(pool, old), await routed(pool, young)
    labels = Labels(pool)
    for request_id, time in ((gone, old), (kept, young)):
        await labels.signal(TEAM, request_id, "schema", 0.0)
        await pool.execute(
            "UPDATE route_labels SET time = $2 WHERE request_id = $1", request_id, time
        )
    reports = UsageReports(pool)
    before = await reports.daily(TEAM, old.date())
    assert before.routing
    sweeper = RouteSweeper(pool, KEEP)
    await sweeper.sweep()
    assert await decided(pool) == {kept}
    assert await labelled(pool) == {kept}
    assert await reports.daily(TEAM, old.date()) == before
    [shown] = (await reports.record(gone, TEAM)).data
    assert shown.decision is None
    [shown] = (await reports.record(kept, TEAM)).data
    assert shown.decision is not None

    late = await routed(pool, old)  # its day's partition is still there
    assert await decided(pool) == {kept, late}
    await sweeper.sweep()
    assert await decided(pool) == {kept}


async def test_nobody_waits_behind_a_reader(pool: asyncpg.Pool) -> None:
    gone = await routed(pool, datetime.now(UTC) - KEEP - timedelta(days=2))
    sweeper = RouteSweeper(pool, KEEP)
    async with pool.acquire() as reader:
        async with reader.transaction():
            await reader.fetch("SELECT 1 FROM route_decisions")
            await sweeper.sweep()
        assert await decided(pool) == {gone}
    await sweeper.sweep()
    assert await decided(pool) == set()


def test_training_needs_what_is_kept() -> None:
    assert LearningSettings().retention_days == 90
    with pytest.raises(ValidationError, match="retention_days"):
        LearningSettings.model_validate({"retention_days": 30})
    LearningSettings.model_validate({"retention_days": 30, "retraining": {"days": 30}})
