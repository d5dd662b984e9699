"""Decisions of `auto`: stored with their records, once, and summed into what they saved."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from sluice.billing.events import RouteDecision, UsageEvent, decode_events, encode_events
from sluice.billing.ledger import Ledger
from sluice.billing.prices import Price
from sluice.billing.reports import UsageReports
from tests.billing.samples import OTHER_TEAM, TEAM, usage_event

DAY = datetime(2026, 3, 5, tzinfo=UTC).date()
SUMS = """
SELECT (d.time AT TIME ZONE 'UTC')::date AS date, d.team_id, d.alias, d.tier_used, d.model_used,
    count(*) AS requests, sum(r.cost_nano_usd)::bigint AS cost_nano_usd,
    sum(d.strong_cost_nano_usd)::bigint AS strong_cost_nano_usd
FROM route_decisions d JOIN usage_records r USING (time, request_id)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""


def decision(**changes: Any) -> RouteDecision:
    values: dict[str, Any] = {
        "alias": "auto",
        "mode": "score",
        "tier": "quality",
        "model": "large",
        "tier_used": "economy",
        "score": 0.75,
        "scorer": "rule",
        "strong_model": "large",
        "strong_price": Price(input=50_000_000).text,
        "threshold": 0.5,
        "reasons": ("maths=+0.21", "length=-0.05"),
        "features": b"\x00\xff" * 10,
        "needs": ("chat", "tools"),
        "tokens": 1_000,
        "conversation": b"\x01" * 16,
    }
    return RouteDecision(**{**values, **changes})


def decided(model_used: str = "small", team: Any = TEAM, **changes: Any) -> UsageEvent:
    return usage_event(model_used=model_used, team_id=str(team), decision=decision(**changes))


def test_an_event_keeps_its_decision_on_the_way() -> None:
    events = [decided(), usage_event()]
    assert decode_events(encode_events(events)) == events


def test_an_event_of_a_release_without_decisions_is_read() -> None:
    old = msgspec.to_builtins(usage_event())
    assert "decision" not in old
    assert decode_events(msgspec.json.encode([old]))[0].decision is None


async def test_what_an_earlier_gateway_reckoned_is_taken_from_it(pool: asyncpg.Pool) -> None:
    of_earlier = decided(strong_price="", strong_cost_nano_usd=500)
    assert b"strong_price" not in encode_events([of_earlier])
    await Ledger(pool).store([of_earlier, decided()])
    costs = await pool.fetch("SELECT strong_cost_nano_usd FROM route_decisions")
    assert [row[0] for row in costs] == [500, 500]


async def test_a_decision_is_stored_with_its_record(pool: asyncpg.Pool) -> None:
    event = decided()
    await Ledger(pool).store([usage_event(), event])
    [row] = await pool.fetch(
        "SELECT d.* FROM route_decisions d JOIN usage_records r USING (time, request_id)"
    )
    assert str(row["request_id"]) == event.request_id
    assert (row["tier"], row["tier_used"], row["model_used"]) == ("quality", "economy", "small")
    assert row["reasons"] == ["maths=+0.21", "length=-0.05"]
    assert (row["needs"], row["tokens"]) == (["chat", "tools"], 1_000)
    assert row["features"] == b"\x00\xff" * 10
    assert row["conversation"] == b"\x01" * 16


async def test_nothing_is_needed_but_what_is_always_there(pool: asyncpg.Pool) -> None:
    await Ledger(pool).store([decided(threshold=None, reasons=(), needs=(), features=b"")])
    [row] = await pool.fetch("SELECT threshold, reasons, needs, features FROM route_decisions")
    assert tuple(row.values()) == (None, [], [], b"")


async def test_sums_are_those_of_the_rows_however_often_and_in_whichever_order_they_come(
    pool: asyncpg.Pool,
) -> None:
    events = [
        decided(model_used=model, tier_used=tier, team=team)
        for model, tier in (("small", "economy"), ("large", "quality"))
        for team in (TEAM, OTHER_TEAM)
        for _ in range(5)
    ] + [usage_event() for _ in range(5)]
    chance = random.Random(3)
    for _ in range(4):
        await Ledger(pool).store(chance.sample(events, 15))
    await Ledger(pool).store(events)
    assert await pool.fetchval("SELECT count(*) FROM route_decisions") == 20
    daily = await pool.fetch("SELECT * FROM routing_daily ORDER BY 1, 2, 3, 4, 5")
    assert [dict(row) for row in daily] == [dict(row) for row in await pool.fetch(SUMS)]


async def test_a_decision_that_postgres_refuses_takes_its_record_with_it_and_no_other(
    pool: asyncpg.Pool,
) -> None:
    good = decided()
    await Ledger(pool).store([decided(strong_price=Price(input=2**63 * 10**6).text), good])
    assert await pool.fetchval("SELECT count(*) FROM usage_rejected") == 1
    for table in ("usage_records", "route_decisions"):
        stored = await pool.fetch(f"SELECT request_id::text FROM {table}")
        assert [row["request_id"] for row in stored] == [good.request_id]


async def test_the_report_says_what_auto_saved(pool: asyncpg.Pool) -> None:
    large = decided("large", tier_used="quality")
    large = msgspec.structs.replace(large, cost_nano_usd=500)
    await Ledger(pool).store([decided(), decided(), large, usage_event(), decided(team=OTHER_TEAM)])
    report = await UsageReports(pool).daily(TEAM, DAY)
    assert [(part.model_used, part.requests, part.saved_nano_usd) for part in report.routing] == [
        ("small", 2, 800),
        ("large", 1, 0),
    ]
    assert (report.saved_nano_usd, report.cost_nano_usd) == (800, 800)
    assert report.routing[0].strong_cost_usd == 1e-6


async def test_without_auto_nothing_was_saved(pool: asyncpg.Pool) -> None:
    await Ledger(pool).store([usage_event()])
    report = await UsageReports(pool).daily(TEAM, DAY)
    assert (report.routing, report.saved_nano_usd) == ([], 0)


async def test_a_record_shows_its_decision(pool: asyncpg.Pool) -> None:
    plain, event = usage_event(), decided(reasons=(), threshold=None)
    await Ledger(pool).store([plain, event])
    shown = {
        str(each.request_id): each.decision
        for each in (
            await UsageReports(pool).records(
                TEAM, datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 3, 6, tzinfo=UTC), None, 10
            )
        ).data
    }
    assert shown[plain.request_id] is None
    found = shown[event.request_id]
    assert found is not None
    assert (found.alias, found.score, found.threshold, found.reasons) == ("auto", 0.75, None, [])
