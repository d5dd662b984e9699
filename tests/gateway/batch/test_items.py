"""Items: claimed by one worker, settled once, charged with their results."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import uuid_utils.compat

from sluice.billing.events import UsageEvent
from sluice.billing.ledger import Ledger
from sluice.gateway.batch.items import Item, Items, Result, Retry
from tests.gateway.batch.jobs_site import JobsSite, chat_lines

ONE, TWO = uuid4(), uuid4()


@pytest.fixture
def items(jobs_site: JobsSite) -> Items:
    return Items(jobs_site.pool, Ledger(jobs_site.pool))


def event(item: Item, cost: int = 7, **more: object) -> UsageEvent:
    values: dict[str, object] = {
        "request_id": str(item.request_id),
        "time_us": time.time_ns() // 1000,
        "team_id": str(item.team_id),
        "key_id": str(item.key_id),
        "endpoint": "chat/completions",
        "model": "sim",
        "model_used": "sim",
        "deployment": "sim/sim",
        "tier": "batch",
        "status": "ok",
        "input_tokens": 3,
        "output_tokens": 2,
        "cost_nano_usd": cost,
        **more,
    }
    return UsageEvent(**values)  # type: ignore[arg-type]


def result(item: Item, text: str = "{}", ok: bool = True, **more: object) -> Result:
    return Result(item.batch_id, item.line, ok, text, event(item, **more))  # type: ignore[arg-type]


async def usage(site: JobsSite) -> list[str]:
    rows = await site.pool.fetch("SELECT request_id::text FROM usage_records")
    return sorted(row["request_id"] for row in rows)


async def test_claims_share_the_lines_of_a_batch(jobs_site: JobsSite, items: Items) -> None:
    batch = await jobs_site.submit(chat_lines(40))
    taken = await asyncio.gather(*(items.claim(uuid4(), {batch.id: 7}) for _ in range(8)))
    counts = Counter(item.line for some in taken for item in some)
    assert sorted(counts) == list(range(1, 41))
    assert set(counts.values()) == {1}
    assert len({item.request_id for some in taken for item in some}) == 40


async def test_a_claimed_item_says_where_its_text_is(jobs_site: JobsSite, items: Items) -> None:
    batch = await jobs_site.submit(chat_lines(3))
    _, second = await items.claim(ONE, {batch.id: 2})
    text = await jobs_site.storage.range(second.object, second.offset, second.length)
    assert b'"custom_id": "request-1"' in text
    assert (second.model, second.endpoint) == ("sim", "chat/completions")


async def test_a_result_its_charge_and_its_count_come_together(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(3))
    one, two, _ = await items.claim(ONE, {batch.id: 3})
    assert await items.settle([result(one), result(two, ok=False, cost=0)]) == {
        one.place,
        two.place,
    }
    row = await jobs_site.batch(batch.id)
    assert (row["completed"], row["failed"], row["cost_nano_usd"]) == (1, 1, 7)
    assert (row["input_tokens"], row["output_tokens"]) == (6, 4)
    assert await usage(jobs_site) == sorted([str(one.request_id), str(two.request_id)])


async def test_the_second_outcome_of_an_item_is_thrown_away_with_its_charge(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(1))
    (first,) = await items.claim(ONE, {batch.id: 1}, lease_seconds=0)
    await items.reap(lease_seconds=0)
    (second,) = await items.claim(TWO, {batch.id: 1})
    assert first.request_id != second.request_id
    settled = await asyncio.gather(
        items.settle([result(first, '"one"')]), items.settle([result(second, '"two"')])
    )
    assert sorted(map(len, settled)) == [0, 1]
    assert len(await usage(jobs_site)) == 1
    assert (await jobs_site.batch(batch.id))["completed"] == 1


async def test_settling_again_changes_nothing(jobs_site: JobsSite, items: Items) -> None:
    batch = await jobs_site.submit(chat_lines(2))
    one, two = await items.claim(ONE, {batch.id: 2})
    outcomes: list[Result | Retry] = [
        result(one),
        Retry(two.batch_id, two.line, two.request_id, 0.0, True, event(two, cost=1)),
    ]
    await items.settle(outcomes)
    before = await jobs_site.batch(batch.id), await usage(jobs_site)
    assert await items.settle(outcomes) == set()
    assert (await jobs_site.batch(batch.id), await usage(jobs_site)) == before


async def test_a_retry_waits_and_counts(jobs_site: JobsSite, items: Items) -> None:
    batch = await jobs_site.submit(chat_lines(1))
    (item,) = await items.claim(ONE, {batch.id: 1})
    await items.settle([Retry(*item.place, item.request_id, 3600.0)])
    assert await items.claim(ONE, {batch.id: 1}) == []
    await jobs_site.pool.execute("UPDATE batch_items SET not_before = now()")
    (again,) = await items.claim(ONE, {batch.id: 1})
    assert (again.attempts, again.request_id != item.request_id) == (1, True)
    await items.settle([Retry(*again.place, again.request_id, 0.0, counts=False)])
    (third,) = await items.claim(ONE, {batch.id: 1})
    assert third.attempts == 1


async def test_a_retry_of_an_item_that_is_somebody_elses_by_now_is_nothing(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(1))
    (late,) = await items.claim(ONE, {batch.id: 1}, lease_seconds=0)
    await items.reap(lease_seconds=0)
    (item,) = await items.claim(TWO, {batch.id: 1})
    assert not await items.settle([Retry(*late.place, late.request_id, event=event(late))])
    assert await items.settle([result(item)]) == {item.place}
    assert await usage(jobs_site) == [str(item.request_id)]


async def test_leases_are_kept_by_those_who_hold_them(jobs_site: JobsSite, items: Items) -> None:
    batch = await jobs_site.submit(chat_lines(3))
    one, two, three = await items.claim(ONE, {batch.id: 3}, lease_seconds=0)
    await items.settle([result(three)])
    places = [one.place, two.place, three.place]
    assert await items.renew(ONE, places) == {one.place, two.place}
    assert await items.renew(TWO, places) == set()
    assert (await items.reap(lease_seconds=0)).again == 0
    assert await items.release(ONE) == 2
    assert len(await items.claim(TWO, {batch.id: 3})) == 2


async def test_an_item_that_its_workers_never_survive_is_given_up(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(1))
    for _ in range(2):
        await items.claim(uuid4(), {batch.id: 1}, lease_seconds=0)
        lapsed = await items.reap(lease_seconds=0, most_losses=2)
    assert (lapsed.again, lapsed.given_up) == (0, 1)
    (line,) = await jobs_site.results(batch.id)
    assert line["error"]["code"] == "request_lost"
    assert (await jobs_site.batch(batch.id))["failed"] == 1


async def test_cancelled_and_expired_batches_give_nothing(
    jobs_site: JobsSite, items: Items
) -> None:
    cancelled = await jobs_site.submit(chat_lines(1))
    expired = await jobs_site.submit(chat_lines(1), window=timedelta(seconds=-1))
    await jobs_site.batches.cancel(cancelled.team_id, cancelled.id)
    assert await items.claim(ONE, {cancelled.id: 1, expired.id: 1}) == []


async def test_closing_and_finishing_race_to_one_result_each(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(60))
    taken = await items.claim(ONE, {batch.id: 40})
    closing = items.close(batch.id, "batch_cancelled", "It was cancelled.", ("pending", "running"))
    settling = asyncio.gather(*(items.settle([result(item)]) for item in taken))
    closed, settled = await asyncio.gather(closing, settling)
    counted = sum(map(len, settled))
    assert closed + counted == 60
    row = await jobs_site.batch(batch.id)
    assert (row["completed"], row["failed"]) == (counted, closed)
    assert len(await usage(jobs_site)) == counted
    lines = await jobs_site.results(batch.id)
    assert len({line["custom_id"] for line in lines if line}) >= closed


async def test_workers_of_many_batches_do_not_wait_in_circles(
    jobs_site: JobsSite, items: Items
) -> None:
    batches = [(await jobs_site.submit(chat_lines(30))).id for _ in range(4)]
    wanted: dict[UUID, int] = dict.fromkeys(batches, 5)

    async def work() -> int:
        worker, done = uuid_utils.compat.uuid7(), 0
        while taken := await items.claim(worker, wanted):
            done += len(await items.settle([result(item) for item in reversed(taken)]))
        return done

    assert sum(await asyncio.gather(*(work() for _ in range(6)))) == 120
    assert len(await usage(jobs_site)) == 120


async def test_a_charge_that_cant_be_stored_keeps_no_result_from_the_others(
    jobs_site: JobsSite, items: Items
) -> None:
    batch = await jobs_site.submit(chat_lines(3))
    one, bad, three = await items.claim(ONE, {batch.id: 3})
    settled = await items.settle([result(one), result(bad, input_tokens=2**70), result(three)])
    assert len(settled) == 3
    assert await usage(jobs_site) == sorted([str(one.request_id), str(three.request_id)])
    rejected = await jobs_site.pool.fetchval("SELECT count(*) FROM usage_rejected")
    assert rejected == 1
