"""Reports: pages that lose and repeat nothing, and teams that see only their own."""

from __future__ import annotations

import base64
import random
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.billing.ledger import Ledger
from sluice.billing.reports import InvalidCursor, UsageReports, _read_cursor, day_range
from tests.billing.samples import NOON, OTHER_TEAM, TEAM, usage_event

DAY = date(2026, 3, 5)
START, END = day_range(DAY)


async def pages(
    reports: UsageReports, team: UUID | None, limit: int, end: datetime = END
) -> list[str]:
    """All pages, one after the other."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await reports.records(team, START, end, cursor, limit)
        assert len(page.data) <= limit
        assert page.has_more == (page.next is not None)
        found += [str(record.request_id) for record in page.data]
        cursor = page.next
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 100])
async def test_paging_gives_every_row_once_and_newest_first(pool: asyncpg.Pool, limit: int) -> None:
    chance = random.Random(limit)
    events = [usage_event(time_us=NOON + chance.randrange(4)) for _ in range(20)]
    await Ledger(pool).store(events)
    newest_first = sorted(events, key=lambda event: (event.time_us, event.request_id), reverse=True)
    found = await pages(UsageReports(pool), TEAM, limit)
    assert found == [event.request_id for event in newest_first]


async def test_rows_that_come_between_pages_shift_nothing(pool: asyncpg.Pool) -> None:
    events = [usage_event() for _ in range(6)]
    await Ledger(pool).store(events)
    reports = UsageReports(pool)
    first = await reports.records(TEAM, START, END, None, 3)
    await Ledger(pool).store([usage_event()])
    second = await reports.records(TEAM, START, END, first.next, 3)
    seen = [str(record.request_id) for record in [*first.data, *second.data]]
    assert seen == [event.request_id for event in reversed(events)]


async def test_a_range_takes_its_start_and_leaves_its_end(pool: asyncpg.Pool) -> None:
    times = [START, START - timedelta(microseconds=1), END, END - timedelta(microseconds=1)]
    events = [usage_event(time_us=round(time.timestamp() * 1e6)) for time in times]
    await Ledger(pool).store(events)
    found = await pages(UsageReports(pool), None, 1)
    assert found == [events[3].request_id, events[0].request_id]


async def test_a_team_sees_only_its_own(pool: asyncpg.Pool) -> None:
    mine, theirs = usage_event(), usage_event(team_id=str(OTHER_TEAM), cost_nano_usd=7)
    await Ledger(pool).store([mine, theirs])
    reports = UsageReports(pool)
    assert await pages(reports, TEAM, 1) == [mine.request_id]
    assert await pages(reports, OTHER_TEAM, 1) == [theirs.request_id]
    assert len(await pages(reports, None, 1)) == 2
    assert (await reports.daily(TEAM, DAY)).requests == 1
    assert (await reports.daily(OTHER_TEAM, DAY)).cost_usd == 7e-9


async def test_a_single_record_is_its_teams_alone(pool: asyncpg.Pool) -> None:
    now = int(datetime.now(UTC).timestamp() * 1e6)
    theirs = usage_event(team_id=str(OTHER_TEAM), time_us=now)
    await Ledger(pool).store([theirs])
    reports = UsageReports(pool)
    assert (await reports.record(UUID(theirs.request_id), TEAM)).data == []
    assert len((await reports.record(UUID(theirs.request_id), OTHER_TEAM)).data) == 1


async def test_another_teams_cursor_opens_nothing(pool: asyncpg.Pool) -> None:
    events = [usage_event(team_id=str(OTHER_TEAM)) for _ in range(3)]
    await Ledger(pool).store([*events, mine := usage_event(time_us=NOON - 1)])
    reports = UsageReports(pool)
    theirs = await reports.records(OTHER_TEAM, START, END, None, 1)
    page = await reports.records(TEAM, START, END, theirs.next, 10)
    assert [str(record.request_id) for record in page.data] == [mine.request_id]


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "é",
        "====",
        "\x00",
        "a" * 10_000,
        encoded("2026-03-05T12:00:00+00:00"),
        encoded("2026-03-05T12:00:00+00:00|"),
        encoded(f"yesterday|{UUID(int=1)}"),
        encoded(f"0001-01-01T00:00:00+23:59|{UUID(int=1)}"),
        encoded(f"9999-12-31T23:59:59-23:59|{UUID(int=1)}"),
        encoded("2026-03-05T12:00:00+00:00|no-uuid"),
        encoded("'; DROP TABLE usage_records; --|"),
    ],
)
async def test_a_cursor_that_no_page_gave_is_refused(pool: asyncpg.Pool, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await UsageReports(pool).records(None, START, END, cursor, 10)


@given(cursor=st.text(max_size=60) | st.binary(max_size=60).map(lambda b: encoded(b.hex())))
def test_no_cursor_raises_anything_else(cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        _read_cursor(cursor)


@pytest.mark.parametrize(
    "time", ["2026-01-01T12:00:00", "0001-01-01T00:00+00:00", "2026-03-04T23:59:59.9+00:00"]
)
async def test_a_forged_cursor_is_at_worst_another_place(pool: asyncpg.Pool, time: str) -> None:
    cursor = encoded(f"{time}|{UUID(int=2**128 - 1)}")
    page = await UsageReports(pool).records(TEAM, START, END, cursor, 10)
    assert page.data == []


@pytest.mark.parametrize(
    "request_id", [UUID(int=0), UUID(int=2**128 - 1), UUID("ffffffff-ffff-4fff-bfff-ffffffffffff")]
)
async def test_an_id_that_is_none_of_ours_finds_nothing(
    pool: asyncpg.Pool, request_id: UUID
) -> None:
    assert (await UsageReports(pool).record(request_id, None)).data == []


async def test_a_record_is_found_by_its_id_and_says_everything(pool: asyncpg.Pool) -> None:
    now = datetime.now(UTC)
    event = usage_event(
        time_us=int(now.timestamp() * 1e6), ttft_us=250, cost_nano_usd=54_399_000, latency_us=1500
    )
    await Ledger(pool).store([event])
    page = await UsageReports(pool).record(UUID(event.request_id), None)
    (record,) = page.data
    assert (record.cost_usd, record.latency_ms, record.ttft_ms) == (0.054399, 1.5, 0.25)
    assert abs(record.time - now) < timedelta(milliseconds=1)
    assert record.error_code is None


async def test_a_day_is_the_sum_of_its_parts(pool: asyncpg.Pool) -> None:
    events = [
        usage_event(model_used=f"m{n % 3}", cost_nano_usd=n, status="error") for n in range(9)
    ]
    await Ledger(pool).store(events)
    day = await UsageReports(pool).daily(TEAM, DAY)
    assert (day.requests, day.errors, day.cost_nano_usd) == (9, 9, 36)
    assert [part.model_used for part in day.by_model] == ["m2", "m1", "m0"]
    assert sum(part.cost_nano_usd for part in day.by_model) == 36


async def test_a_day_has_its_tiers(pool: asyncpg.Pool) -> None:
    tiers = ("batch", "interactive", "batch")
    events = [
        usage_event(tier=tier, cost_nano_usd=5, model_used=str(n)) for n, tier in enumerate(tiers)
    ]
    await Ledger(pool).store(events)
    day = await UsageReports(pool).daily(TEAM, DAY)
    assert [(part.tier, part.requests, part.cost_nano_usd) for part in day.by_tier] == [
        ("batch", 2, 10),
        ("interactive", 1, 5),
    ]


async def test_an_empty_day_is_zeros(pool: asyncpg.Pool) -> None:
    day = await UsageReports(pool).daily(TEAM, date(1999, 1, 1))
    assert (day.requests, day.by_model, day.cost_usd) == (0, [], 0.0)
