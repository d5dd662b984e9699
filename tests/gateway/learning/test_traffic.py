"""What the loop reads of a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from sluice.gateway.learning.examples import Opinion, rows_of
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.traffic import Traffic
from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView
from tests.billing.samples import OTHER_TEAM, TEAM
from tests.gateway.learning.samples import ALIAS, FEATURES, STRONG, decided

F1, F2, F3 = (extract(RequestView(text, 1)) for text in "123")
LONG_AGO = datetime.now(UTC) - timedelta(days=1)


async def test_labelled_requests(pool: asyncpg.Pool) -> None:
    labels, traffic = Labels(pool), Traffic(pool)
    first = await decided(pool, ago=30, features=F1)
    second = await decided(pool, ago=20, features=F2, **STRONG)
    # the strong tier's second model, which answered where the strong model could not
    third = await decided(pool, ago=10, model_used="large-b", tier_used="strong")
    await decided(pool, ago=5)  # of which nothing is known
    other = await decided(pool, ago=5, alias="other")
    of_old = await decided(pool, ago=5, features=b"\x00 of another release")
    await labels.signal(TEAM, first, "truncated", 0.0)
    await labels.compared(TEAM, first, 1.0, 0.5, None)
    for each in (second, third, other, of_old):
        await labels.signal(TEAM, each, "schema", 0.0)
    await labels.signal(OTHER_TEAM, second, "truncated", 0.0)  # which is not its request

    found = await traffic.labelled(ALIAS, LONG_AGO)
    assert [each.request_id for each in found] == [first, second, third]
    assert [each.strong for each in found] == [False, True, True]
    assert [each.features for each in found][:2] == [F1, F2]
    assert sorted(found[0].opinions, key=lambda each: each.source) == [
        Opinion("judge", strong=1.0, weak=0.5),
        Opinion("signal:truncated", 0.0),
    ]
    assert [each.source for each in found[1].opinions] == ["signal:schema"]
    assert await traffic.labelled(ALIAS, datetime.now(UTC)) == []
    assert sorted(await traffic.aliases()) == [ALIAS, "other"]
    assert await traffic.recent(ALIAS, datetime.now(UTC) - timedelta(seconds=25)) == [
        FEATURES,
        FEATURES,
        F2,
    ]


async def test_the_strong_tier_is_that_of_the_requests_own_strong_model(
    pool: asyncpg.Pool,
) -> None:
    ours = await decided(pool, ago=20, **STRONG)
    # where another team, or a key that may use less, has another strong model
    theirs = await decided(
        pool, ago=10, model_used="medium", tier_used="strong", strong_model="huge"
    )
    for each in (ours, theirs):
        await Labels(pool).signal(TEAM, each, "schema", 0.0)
    found = await Traffic(pool).labelled(ALIAS, LONG_AGO)
    assert [each.strong for each in found] == [True, False]


async def test_pairs(pool: asyncpg.Pool) -> None:
    labels, traffic = Labels(pool), Traffic(pool)
    at_both = [await decided(pool, features=F1), await decided(pool, features=F1, **STRONG)]
    at_one = [await decided(pool, features=F2), await decided(pool, features=F2)]
    for each in (*at_both, *at_one):
        await labels.signal(TEAM, each, "schema", 0.0)
    assert await traffic.pairs(ALIAS, LONG_AGO) == 1
    await labels.compared(TEAM, await decided(pool, features=F3), 1.0, 0.0, None)
    await labels.compared(TEAM, await decided(pool, features=F3), 1.0, 0.0, None)
    assert await traffic.pairs(ALIAS, LONG_AGO) == 2
    rows = rows_of(await traffic.labelled(ALIAS, LONG_AGO))
    assert sum(row.paired for row in rows) == 2


async def test_requests_that_another_one_followed(pool: asyncpg.Pool) -> None:
    before = await decided(pool, ago=7200, conversation=b"a")  # too long before
    first = await decided(pool, ago=60, conversation=b"a", features=F1)
    second = await decided(pool, ago=30, conversation=b"a", features=F2)
    await decided(pool, ago=20, conversation=b"b")
    await decided(pool, ago=10, conversation=b"a", features=F3)
    found = await Traffic(pool).followed(datetime.now(UTC) - timedelta(seconds=40))
    assert [(each.request_id, each.features, each.next_features) for each in found] == [
        (first, F1, F2),
        (second, F2, F3),
    ]
    assert before not in {each.request_id for each in found}


async def test_labels_are_forgotten(pool: asyncpg.Pool) -> None:
    labels, traffic = Labels(pool), Traffic(pool)
    await labels.compared(TEAM, await decided(pool), 1.0, 0.0, "a prompt")
    await traffic.forget(datetime.now(UTC) - timedelta(hours=1))
    assert await pool.fetchval("SELECT count(*) FROM route_labels") == 1
    await traffic.forget(datetime.now(UTC) + timedelta(hours=1))
    assert await pool.fetchval("SELECT count(*) FROM route_labels") == 0
