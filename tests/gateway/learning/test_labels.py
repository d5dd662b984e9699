"""Labels in Postgres, and feedback on requests that are, or are about to be, recorded."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest
import uuid_utils.compat

from sluice.gateway.learning.feedback import FeedbackBox, NewFeedback
from sluice.gateway.learning.labels import MOST_OF_A_REQUEST, Labels, made_at
from sluice.gateway.tenancy.refusals import Conflict, Missing
from tests.billing.samples import OTHER_TEAM, TEAM
from tests.gateway.learning.samples import record


async def kept(pool: asyncpg.Pool, request_id: UUID) -> list[tuple[object, ...]]:
    rows = await pool.fetch(
        "SELECT source, score, strong_score, weak_score, prompt FROM route_labels"
        " WHERE request_id = $1 ORDER BY source",
        request_id,
    )
    return [tuple(row) for row in rows]


async def test_each_source_has_one_say(pool: asyncpg.Pool) -> None:
    request_id, labels = await record(pool), Labels(pool)
    await labels.feedback(TEAM, request_id, "user", 0.0)
    said = await labels.feedback(TEAM, request_id, "user", 1.0)
    await labels.feedback(TEAM, request_id, "tests", 0.5)
    assert (said.request_id, said.source, said.score) == (request_id, "user", 1.0)
    assert await kept(pool, request_id) == [
        ("feedback:tests", 0.5, None, None, None),
        ("feedback:user", 1.0, None, None, None),
    ]


async def test_so_many_sources_have_a_say_and_no_more(pool: asyncpg.Pool) -> None:
    request_id, labels = await record(pool), Labels(pool)
    for number in range(MOST_OF_A_REQUEST):
        await labels.feedback(TEAM, request_id, f"s{number}", 0.0)
    with pytest.raises(Conflict, match="too many sources"):
        await labels.feedback(TEAM, request_id, "another", 1.0)
    assert (await labels.feedback(TEAM, request_id, "s0", 1.0)).score == 1.0
    assert len(await kept(pool, request_id)) == MOST_OF_A_REQUEST


@pytest.mark.parametrize("request_id", [uuid4(), UUID(int=0), UUID(int=2**128 - 1)])
async def test_what_is_no_request_of_ours_is_not_there(
    pool: asyncpg.Pool, request_id: UUID
) -> None:
    with pytest.raises(Missing):
        await Labels(pool).feedback(TEAM, request_id, "user", 1.0)


async def test_another_teams_request_is_not_there(pool: asyncpg.Pool) -> None:
    request_id = await record(pool)
    with pytest.raises(Missing):
        await Labels(pool).feedback(OTHER_TEAM, request_id, "user", 1.0)
    assert await kept(pool, request_id) == []


async def test_signals_and_comparisons_are_kept_once(pool: asyncpg.Pool) -> None:
    request_id, labels = await record(pool), Labels(pool)
    for score in (0.25, 0.75):
        await labels.signal(TEAM, request_id, "truncated", score)
        await labels.compared(TEAM, request_id, 1.0, score, "2\x00+2?")
    assert await kept(pool, request_id) == [
        ("judge", None, 1.0, 0.25, "2\ufffd+2?"),
        ("signal:truncated", 0.25, None, None, None),
    ]


def test_when_an_id_was_made() -> None:
    made = made_at(UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"))  # RFC 9562, appendix A.6
    assert made is not None
    assert made.isoformat() == "2022-02-22T19:22:22+00:00"
    assert made_at(uuid4()) is None


class TestFeedbackBox:
    async def test_it_waits_for_a_record_that_is_on_its_way(self, pool: asyncpg.Pool) -> None:
        request_id = uuid_utils.compat.uuid7()
        given = NewFeedback(request_id=request_id, label="good")
        put = asyncio.create_task(FeedbackBox(Labels(pool), wait_seconds=20).put(TEAM, given))
        await asyncio.sleep(0)
        await record(pool, request_id)
        assert (await put).score == 1.0

    async def test_it_does_not_wait_for_old_ones(self, pool: asyncpg.Pool) -> None:
        given = NewFeedback(request_id=uuid_utils.compat.uuid7(), score=0.5)
        box = FeedbackBox(Labels(pool), clock=lambda: 4e9, wait_seconds=1e9)
        with pytest.raises(Missing):
            await box.put(TEAM, given)

    async def test_nor_for_ever(self, pool: asyncpg.Pool) -> None:
        given = NewFeedback(request_id=uuid_utils.compat.uuid7(), score=0.5)
        with pytest.raises(Missing):
            await FeedbackBox(Labels(pool), wait_seconds=0.1).put(TEAM, given)
