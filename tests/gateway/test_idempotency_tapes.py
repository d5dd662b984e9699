"""Claims and tapes in a real Valkey: one owner, leases, and what others see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from sluice.billing.events import UsageEvent, encode_events
from sluice.billing.recorder import UsageNotDurable
from sluice.billing.redis_link import RedisLink
from sluice.gateway.idempotency.scripts import BYTES, LEASES, PREFIX, TAPE
from sluice.gateway.idempotency.sweeper import Sweeper
from sluice.gateway.idempotency.tapes import (
    Claim,
    Group,
    Head,
    TapeLost,
    Tapes,
    TapesAway,
)
from tests.harness.polling import eventually_async
from tests.servers import RunningServer

HEAD = Head(200, [("content-type", "text/plain"), ("x", "é")])
LEASE = 0.5


@pytest.fixture
async def link(valkey: RunningServer) -> AsyncIterator[RedisLink]:
    made = RedisLink(valkey.url)
    await made.connect()
    yield made
    made.drop()


@pytest.fixture
async def redis(valkey: RunningServer) -> AsyncIterator[Redis]:
    """A client of the session's database 0, without the tapes of other tests."""
    async with Redis.from_url(valkey.url) as client:
        async for name in client.scan_iter(f"{PREFIX}*"):
            await client.delete(name)
        yield client


@pytest.fixture
def tapes(link: RedisLink, redis: Redis) -> Tapes:
    """With leases that outlast a test."""
    return Tapes(link, 30, 600)


@pytest.fixture
def hasty(link: RedisLink, redis: Redis) -> Tapes:
    """With leases that run out at once."""
    return Tapes(link, LEASE, 600)


def claim(owner: str = "one", name: str = "name", fingerprint: str = "print") -> Claim:
    return Claim(name, fingerprint, owner)


def group(offset: int, part: bytes, head: Head | None = HEAD, **more: Any) -> Group:
    return Group(offset, part, head, **more)


async def expired(redis: Redis, owner: str = "one") -> None:
    """Until a hasty lease has run out, by Redis's clock."""

    async def over() -> bool:
        seconds, micros = await redis.time()
        due = await redis.zscore(LEASES, owner)
        return due is not None and due < seconds * 1000 + micros / 1000

    await eventually_async(over)


async def test_one_of_many_gets_the_key(tapes: Tapes) -> None:
    found = await asyncio.gather(*(tapes.claim(claim(f"owner-{n}")) for n in range(20)))
    winners = [held.owner for held in found if held.finding == "claimed"]
    assert len(winners) == 1
    assert {held.owner for held in found} == set(winners)
    assert sorted({held.finding for held in found}) == ["claimed", "running"]


async def test_another_request_may_not_use_it(tapes: Tapes) -> None:
    await tapes.claim(claim())
    assert (await tapes.claim(claim("two", fingerprint="other"))).finding == "reused"
    await tapes.append(claim(), group(0, b"all"))
    await tapes.finish(claim(), group(3, b"!"))
    assert (await tapes.claim(claim("two", fingerprint="other"))).finding == "reused"


async def test_an_answer_grows_and_is_finished_at_once_with_its_last_bytes(
    tapes: Tapes, redis: Redis
) -> None:
    await tapes.claim(claim())
    await tapes.append(claim(), group(0, b"hel"))
    view = await tapes.view("one", 1, listening=False)
    assert view is not None
    assert (view.state, view.head, view.length, view.part) == ("running", HEAD, 3, b"el")
    assert await redis.pttl(TAPE + "one") > 3_600_000
    await tapes.finish(claim(), group(3, b"lo"))
    view = await tapes.view("one", 3, listening=True)
    assert view is not None
    assert (view.state, view.length, view.part, view.large) == ("done", 5, b"lo", False)
    assert await tapes.read("one", 2) == b"llo"
    held = await tapes.claim(claim("two"))
    assert (held.finding, held.owner) == ("done", "one")
    for name in (PREFIX + "name", TAPE + "one", BYTES + "one"):
        assert 590_000 < await redis.pttl(name) <= 600_000
    assert await redis.zcard(LEASES) == 0
    assert not await redis.hexists(TAPE + "one", "seen")


async def test_writes_may_be_repeated(tapes: Tapes) -> None:
    await tapes.claim(claim())
    for _ in range(2):
        await tapes.append(claim(), group(0, b"one "))
    for _ in range(2):
        await tapes.append(claim(), group(4, b"two "))
    for _ in range(2):
        await tapes.finish(claim(), group(8, b"three"))
    assert await tapes.read("one", 0) == b"one two three"


async def test_bytes_have_their_place(tapes: Tapes) -> None:
    await tapes.claim(claim())
    await tapes.append(claim(), group(0, b"one"))
    with pytest.raises(TapeLost):
        await tapes.append(claim(), group(5, b"two"))


async def test_a_failure_frees_the_key_and_is_heard_by_those_who_wait(
    tapes: Tapes, redis: Redis
) -> None:
    await tapes.claim(claim())
    await tapes.append(claim(), group(0, b"half", event=b"due"))
    await tapes.free(claim(), group(4, b" error"), "failed")
    view = await tapes.view("one", 0, listening=False)
    assert view is not None
    assert (view.state, view.part) == ("failed", b"half error")
    assert await redis.pttl(BYTES + "one") <= 60_000
    assert await tapes.reap() == {}
    assert (await tapes.claim(claim("two", fingerprint="other"))).finding == "claimed"
    with pytest.raises(TapeLost):
        await tapes.append(claim(), group(10, b"more"))


async def test_a_lease_that_has_run_out_gives_the_key_away(hasty: Tapes, redis: Redis) -> None:
    await hasty.claim(claim())
    await hasty.append(claim(), group(0, b"half", event=b"due"))
    await expired(redis)
    assert (await hasty.claim(claim("two", fingerprint="other"))).finding == "claimed"
    with pytest.raises(TapeLost):
        await hasty.append(claim(), group(4, b"more"))
    with pytest.raises(TapeLost):
        await hasty.finish(claim(), group(4, b"more"))
    with pytest.raises(TapeLost):
        await hasty.renew(claim())
    await hasty.free(claim(), group(4, b"more"), "failed")
    view = await hasty.view("one", 0, listening=False)
    assert view is not None
    assert view.state == "lost"
    assert (await hasty.reap())["one"] == b"due"


async def test_a_lease_is_renewed_by_its_owner(hasty: Tapes, redis: Redis) -> None:
    await hasty.claim(claim())
    await expired(redis)
    assert await hasty.renew(claim()) is None
    assert (await hasty.claim(claim("two"))).finding == "running"
    await expired(redis)
    await hasty.append(claim(), group(0, b"x"))
    assert (await hasty.claim(claim("two"))).finding == "running"


async def test_the_owner_learns_that_somebody_listens_elsewhere(tapes: Tapes) -> None:
    await tapes.claim(claim())
    await tapes.view("one", 0, listening=False)
    assert await tapes.renew(claim()) is None
    await tapes.view("one", 0, listening=True)
    seen = await tapes.renew(claim())
    assert seen is not None
    assert 0 <= seen < 5


async def test_what_outgrows_its_tape_is_remembered_without_it(tapes: Tapes, redis: Redis) -> None:
    await tapes.claim(claim())
    await tapes.append(claim(), group(0, b"begin"))
    await tapes.append(claim(), group(5, b"", large=True))
    assert (await tapes.claim(claim("two"))).finding == "large"
    await tapes.finish(claim(), group(5, b"", large=True))
    assert (await tapes.claim(claim("two"))).finding == "large"
    assert (await tapes.claim(claim("two", fingerprint="other"))).finding == "reused"
    assert await redis.pttl(BYTES + "one") <= 60_000 < await redis.pttl(PREFIX + "name")


async def test_an_answer_whose_bytes_redis_dropped_is_not_given_again(
    tapes: Tapes, redis: Redis
) -> None:
    await tapes.claim(claim())
    await tapes.finish(claim(), group(0, b"all"))
    await redis.delete(BYTES + "one")
    assert (await tapes.claim(claim("two"))).finding == "large"


async def test_lost_generations_are_given_to_one_who_charges_them(
    hasty: Tapes, redis: Redis
) -> None:
    await hasty.claim(claim())
    await hasty.append(claim(), group(0, b"x", event=b"due"))
    await hasty.claim(claim("early", "second"))
    await expired(redis)
    await expired(redis, "early")
    both = await asyncio.gather(hasty.reap(), hasty.reap())
    assert sorted(both, key=len) == [{}, {"one": b"due", "early": b""}]
    assert not await redis.exists(PREFIX + "name")
    await hasty.bury("early")
    await expired(redis)
    assert await hasty.reap() == {"one": b"due"}
    await hasty.bury("one")
    assert await redis.zcard(LEASES) == 0
    assert await redis.pttl(TAPE + "one") <= 60_000


async def test_redis_that_is_away_or_refuses_is_away(
    link: RedisLink, valkey: RunningServer
) -> None:
    tapes = Tapes(RedisLink(valkey.url), 1, 1)
    with pytest.raises(TapesAway):
        await tapes.claim(claim())
    with pytest.raises(TapesAway):
        await tapes.view("one", 0, listening=False)


async def test_scripts_are_sent_again_to_a_redis_that_forgot_them(
    tapes: Tapes, redis: Redis
) -> None:
    await tapes.claim(claim())
    await redis.script_flush()
    await tapes.append(claim(), group(0, b"x"))
    assert await tapes.read("one", 0) == b"x"


@dataclass
class Books:
    """A recorder that may refuse."""

    events: list[UsageEvent] = field(default_factory=list)
    full: bool = False

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.full:
            future.set_exception(UsageNotDurable("full"))
        else:
            self.events.append(event)
            future.set_result(None)
        return future


async def test_the_sweeper_charges_once_and_only_what_is_durable(
    hasty: Tapes, redis: Redis
) -> None:
    event = UsageEvent("r", 1, "t", "k", "chat", "m", "m", "d", "interactive", "error")
    books: Any = Books(full=True)
    lost: list[int] = []
    sweeper = Sweeper(hasty, books, lambda: lost.append(1), 0.01, 0.01)
    await hasty.claim(claim())
    await hasty.append(claim(), group(0, b"x", event=encode_events([event])))
    await expired(redis)
    await sweeper.sweep()
    assert await redis.zcard(LEASES) == 1
    books.full = False
    await expired(redis)
    await sweeper.start()

    async def buried() -> bool:
        return await redis.zcard(LEASES) == 0

    await eventually_async(buried)
    await sweeper.sweep()
    await sweeper.stop()
    assert books.events == [event]
    assert len(lost) == 2
