"""The ledger: each request once, whatever comes twice, late, broken or at midnight."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from sluice.billing import ledger as module
from sluice.billing.events import FIELD, STREAM, UsageEvent, encode_events
from sluice.billing.ledger import GROUP, Ledger, LedgerConsumer, storable
from tests.billing.samples import NOON, OTHER_TEAM, TEAM, usage_event
from tests.harness.polling import eventually_async

SUMS = (
    "requests, errors, cancelled, estimated, input_tokens, cached_input_tokens,"
    " cache_write_tokens, output_tokens, cost_nano_usd"
)
DAILY_OF_RECORDS = """
SELECT (time AT TIME ZONE 'UTC')::date AS date, team_id, key_id, model_used, tier,
    count(*) AS requests, count(*) FILTER (WHERE status = 'error') AS errors,
    count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE estimated) AS estimated, sum(input_tokens)::bigint AS input_tokens,
    sum(cached_input_tokens)::bigint AS cached_input_tokens,
    sum(cache_write_tokens)::bigint AS cache_write_tokens,
    sum(output_tokens)::bigint AS output_tokens, sum(cost_nano_usd)::bigint AS cost_nano_usd
FROM usage_records GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
DAILY = f"SELECT date, team_id, key_id, model_used, tier, {SUMS} FROM usage_daily ORDER BY 1, 2, 3, 4, 5"  # noqa: E501


async def stored(pool: asyncpg.Pool) -> list[str]:
    """Ids of the records, in the order of their times; the daily sums must be theirs."""
    assert await pool.fetch(DAILY) == await pool.fetch(DAILY_OF_RECORDS)
    rows = await pool.fetch("SELECT request_id::text AS id FROM usage_records ORDER BY time, id")
    return [row["id"] for row in rows]


async def rejected(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM usage_rejected")
    return count


def ids(events: Sequence[UsageEvent]) -> list[str]:
    return [event.request_id for event in events]


def at(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1e6)  # type: ignore[arg-type, misc]


class TestOnce:
    async def test_twice_in_one_batch(self, pool: asyncpg.Pool) -> None:
        event = usage_event()
        await Ledger(pool).store([event, event, usage_event(), event])
        assert len(await stored(pool)) == 2

    async def test_twice_in_two_batches(self, pool: asyncpg.Pool) -> None:
        events = [usage_event() for _ in range(3)]
        await Ledger(pool).store(events[:2])
        await Ledger(pool).store(events)
        assert await stored(pool) == ids(events)

    async def test_from_many_at_once_in_any_order(self, pool: asyncpg.Pool) -> None:
        events = [usage_event(model_used=f"m{n % 5}") for n in range(100)]
        chance = random.Random(7)
        batches = [chance.sample(events, 60) for _ in range(12)] + [events]
        await asyncio.gather(*(Ledger(pool).store(batch) for batch in batches))
        assert await stored(pool) == ids(events)

    async def test_nothing_is_nothing(self, pool: asyncpg.Pool) -> None:
        await Ledger(pool).store([])
        assert await stored(pool) == []


BAD: list[dict[str, Any]] = [
    {"input_tokens": 2**63},
    {"output_tokens": 10**40},
    {"cost_nano_usd": -(2**63) - 1},
    {"attempts": 2**31},
    {"request_id": "no-uuid"},
    {"team_id": ""},
    {"key_id": "\x00"},
    {"time_us": 10**20},
    {"time_us": -(10**18)},
    {"time_us": 2**200},
    {"status": "o\x00k"},
]


class TestRefusals:
    @pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad}"[:40])
    async def test_a_refused_row_is_kept_aside_and_loses_no_other(
        self, pool: asyncpg.Pool, bad: dict[str, Any]
    ) -> None:
        events = [usage_event() for _ in range(9)]
        await Ledger(pool).store([*events[:4], usage_event(**bad), *events[4:]])
        assert await stored(pool) == ids(events)
        row = await pool.fetchrow("SELECT event, reason FROM usage_rejected")
        assert row is not None
        assert '"request_id"' in row["event"]
        assert row["reason"]

    async def test_all_refused_rows_are_kept(self, pool: asyncpg.Pool) -> None:
        bad = [usage_event(**change) for change in BAD]
        good = usage_event()
        await Ledger(pool).store([*bad, good])
        assert await stored(pool) == [good.request_id]
        assert await rejected(pool) == len(BAD)

    async def test_a_daily_sum_that_overflows_rejects_the_row_that_does_it(
        self, pool: asyncpg.Pool
    ) -> None:
        first, second = (usage_event(input_tokens=2**62) for _ in range(2))
        await Ledger(pool).store([first])
        await Ledger(pool).store([second])
        assert await stored(pool) == [first.request_id]
        assert await rejected(pool) == 1

    @pytest.mark.parametrize("text", ["a\x00b", "\\u0000", "\ud800x", "x\udfff", "é😀", ""])
    async def test_case_64_text_that_postgres_refuses_is_made_storable(
        self, pool: asyncpg.Pool, text: str
    ) -> None:
        other = usage_event()
        event = usage_event(model=text, model_used=text, deployment=text, error_code=text)
        await Ledger(pool).store([event, other])
        assert set(await stored(pool)) == {event.request_id, other.request_id}
        assert await pool.fetchval(
            "SELECT model FROM usage_records WHERE request_id::text = $1", event.request_id
        ) == storable(text)
        assert await rejected(pool) == 0

    async def test_a_rejection_may_hold_anything(self, pool: asyncpg.Pool) -> None:
        await Ledger(pool).reject("\x00\ud800", "why\x00")
        assert await rejected(pool) == 1


def test_only_what_postgres_refuses_is_replaced() -> None:
    assert storable("a\x00\ud83d b\n\u2028é😀") == "a\ufffd? b\n\u2028é😀"


class TestDays:
    async def test_midnight_utc_parts_the_days(self, pool: asyncpg.Pool) -> None:
        midnight = at(2026, 3, 6)
        events = [usage_event(time_us=midnight + offset) for offset in (-1, 0, 1)]
        await Ledger(pool).store(events)
        assert await stored(pool) == ids(events)
        rows = await pool.fetch(
            "SELECT tableoid::regclass::text AS t FROM usage_records ORDER BY time"
        )
        assert [row["t"] for row in rows] == [
            "usage_records_20260305", "usage_records_20260306", "usage_records_20260306"
        ]  # fmt: skip
        days = await pool.fetch("SELECT date::text AS d, requests FROM usage_daily ORDER BY 1")
        assert [tuple(row) for row in days] == [("2026-03-05", 1), ("2026-03-06", 2)]

    async def test_the_sessions_time_zone_does_not_matter(
        self, database: str, pool: asyncpg.Pool
    ) -> None:
        settings = {"timezone": "Asia/Tokyo"}
        async with asyncpg.create_pool(database, min_size=1, server_settings=settings) as far:
            await Ledger(far).store([usage_event(time_us=at(2026, 3, 5, 23, 59))])
        assert await pool.fetchval("SELECT date::text FROM usage_daily") == "2026-03-05"
        assert len(await stored(pool)) == 1

    @pytest.mark.parametrize(
        "when", [(2024, 2, 29), (2026, 12, 31, 23, 59, 59), (1970, 1, 1), (2199, 1, 1)]
    )
    async def test_any_day_has_its_partition(
        self, pool: asyncpg.Pool, when: tuple[int, ...]
    ) -> None:
        await Ledger(pool).store([usage_event(time_us=at(*when))])
        assert len(await stored(pool)) == 1

    async def test_many_make_the_same_partition_at_once(self, pool: asyncpg.Pool) -> None:
        events = [usage_event(time_us=NOON + n % 4 * 86_400_000_000 + n) for n in range(24)]
        await asyncio.gather(*(Ledger(pool).store([event]) for event in events))
        assert len(await stored(pool)) == 24


@pytest.mark.parametrize("seed", range(3))
async def test_daily_sums_equal_the_sums_of_records(pool: asyncpg.Pool, seed: int) -> None:
    chance = random.Random(seed)
    pick, count = chance.choice, chance.randrange
    events = [
        usage_event(
            time_us=NOON + count(3 * 86_400_000_000),
            team_id=str(pick([TEAM, OTHER_TEAM])),
            model_used=pick(["a", "b", "é\x00"]),
            tier=pick(["interactive", "batch"]),
            status=pick(["ok", "error", "cancelled"]),
            estimated=pick([True, False]),
            ttft_us=pick([None, 5]),
            input_tokens=count(10**6),
            cached_input_tokens=count(10**6),
            cache_write_tokens=count(10**6),
            output_tokens=pick([0, 5, 2**63] if count(20) == 0 else [7]),
            cost_nano_usd=count(10**12),
        )
        for _ in range(300)
    ]
    batches = [chance.sample(events, count(1, 60)) for _ in range(30)] + [events]
    for start in range(0, len(batches), 4):
        await asyncio.gather(*(Ledger(pool).store(b) for b in batches[start : start + 4]))
    good = {event.request_id for event in events if event.output_tokens < 2**63}
    assert set(await stored(pool)) == good


@contextlib.asynccontextmanager
async def consuming(redis: Redis, pool: asyncpg.Pool, name: str = "one") -> AsyncIterator[None]:
    task = asyncio.create_task(LedgerConsumer(redis, Ledger(pool), name, 0.05).run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def send(redis: Redis, *groups: bytes | Sequence[UsageEvent]) -> None:
    for group in groups:
        text = group if isinstance(group, bytes) else encode_events(group)
        await redis.xadd(STREAM, {FIELD: text})


async def settled(redis: Redis, pool: asyncpg.Pool, expected: set[str]) -> None:
    """Wait until exactly these are stored and nothing is left to do."""

    async def there() -> bool:
        return len(await pool.fetch("SELECT FROM usage_records")) == len(expected)

    async def all_acknowledged() -> bool:
        return await redis.xlen(STREAM) == 0

    await eventually_async(there)
    await eventually_async(all_acknowledged)
    assert set(await stored(pool)) == expected
    assert (await redis.xpending(STREAM, GROUP))["pending"] == 0


class TestConsumer:
    async def test_events_before_and_after_its_start_are_stored(
        self, redis: Redis, pool: asyncpg.Pool
    ) -> None:
        events = [usage_event() for _ in range(300)]
        await send(redis, *([event] for event in events[:150]))
        async with consuming(redis, pool):
            await send(redis, events[150:], events[150:160])
            await settled(redis, pool, set(ids(events)))

    async def test_two_consumers_share_the_work(self, redis: Redis, pool: asyncpg.Pool) -> None:
        events = [usage_event() for _ in range(200)]
        async with consuming(redis, pool, "one"), consuming(redis, pool, "two"):
            await send(redis, *([event, events[0]] for event in events))
            await settled(redis, pool, set(ids(events)))

    @pytest.mark.parametrize(
        "poison",
        [
            b"",
            b"garbage\x00\xff",
            b"[{}]",
            b"{}",
            b"[" * 100_000,
            b'[{"x":"\\ud800"}]',
            b'[{"x":%s}]' % (b"[" * 100_000 + b"]" * 100_000),
        ],
        ids=range(7),
    )
    async def test_a_group_that_cannot_be_read_stops_nobody(
        self, redis: Redis, pool: asyncpg.Pool, poison: bytes
    ) -> None:
        event = usage_event()
        await send(redis, poison, [event])
        async with consuming(redis, pool):
            await settled(redis, pool, {event.request_id})
        assert await rejected(pool) == 1

    async def test_an_entry_without_the_field_stops_nobody(
        self, redis: Redis, pool: asyncpg.Pool
    ) -> None:
        await redis.xadd(STREAM, {"other": "x"})
        event = usage_event(input_tokens=2**70)
        await send(redis, [event, usage_event(time_us=2**200)], [good := usage_event()])
        async with consuming(redis, pool):
            await settled(redis, pool, {good.request_id})
        assert await rejected(pool) == 3

    @pytest.mark.parametrize("successor", ["dead", "other"])
    async def test_what_a_dead_consumer_took_is_stored_by_its_successor(
        self,
        redis: Redis,
        pool: asyncpg.Pool,
        monkeypatch: pytest.MonkeyPatch,
        successor: str,
    ) -> None:
        monkeypatch.setattr(module, "CLAIM_IDLE_MS", 0 if successor == "other" else 10**9)
        events = [usage_event() for _ in range(5)]
        await send(redis, *([event] for event in events))
        await redis.xgroup_create(STREAM, GROUP, id="0")
        await redis.xreadgroup(GROUP, "dead", {STREAM: ">"}, count=3)
        async with consuming(redis, pool, successor):
            await settled(redis, pool, set(ids(events)))

    async def test_a_consumer_that_died_between_storing_and_acknowledging_charges_once(
        self, redis: Redis, pool: asyncpg.Pool
    ) -> None:
        events = [usage_event() for _ in range(3)]
        await send(redis, events)
        await redis.xgroup_create(STREAM, GROUP, id="0")
        await redis.xreadgroup(GROUP, "one", {STREAM: ">"})
        await Ledger(pool).store(events)
        async with consuming(redis, pool, "one"):
            await settled(redis, pool, set(ids(events)))

    async def test_a_flushed_redis_gets_its_group_again(
        self, redis: Redis, pool: asyncpg.Pool
    ) -> None:
        first, second = usage_event(), usage_event()
        async with consuming(redis, pool):
            await send(redis, [first])
            await settled(redis, pool, {first.request_id})
            await redis.flushall()
            await send(redis, [second])
            await settled(redis, pool, {first.request_id, second.request_id})

    async def test_while_postgres_refuses_connections_nothing_is_lost(
        self, redis: Redis, pool: asyncpg.Pool, database: str
    ) -> None:
        events = [usage_event() for _ in range(4)]
        name = database.rpartition("/")[2].partition("?")[0]
        async with consuming(redis, pool):
            await send(redis, events[:2])
            await settled(redis, pool, set(ids(events[:2])))
            await pool.execute("ALTER TABLE usage_records RENAME TO away")
            await send(redis, events[2:])
            await pool.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = $1 AND pid <> pg_backend_pid()",
                name,
            )
            await pool.execute("ALTER TABLE away RENAME TO usage_records")
            await settled(redis, pool, set(ids(events)))
