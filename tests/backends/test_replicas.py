"""Announcements in a real Valkey, by both kinds of connection."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.backends.replicas import Announcement, EngineLimits, EngineLoad, Replicas, SendCommand
from sluice.billing.redis_link import RedisLink
from tests.harness.polling import eventually_async
from tests.servers import RunningServer


@pytest.fixture(params=["link", "client"])
async def send(request: pytest.FixtureRequest, valkey: RunningServer) -> AsyncIterator[SendCommand]:
    """The connection of the request path, and the general client."""
    async with AsyncExitStack() as stack:
        if request.param == "client":
            client = await stack.enter_async_context(Redis.from_url(valkey.url))
            yield client.execute_command
        else:
            link = RedisLink(valkey.url)
            await link.connect()
            stack.callback(link.drop)
            yield link.send


@pytest.fixture
def ready() -> Announcement:
    """A replica of a pool that no other test has."""
    return Announcement(
        id="one",
        pool=f"pool-{uuid.uuid4()}",
        url="http://10.0.0.1:8000",
        model="llama",
        version="3",
        stage="prod",
        state="ready",
        since=1_700_000_000.5,
        limits=EngineLimits(kv_blocks=1000, block_size=16, max_num_seqs=64, priority=True),
        load=EngineLoad(running=3, waiting=1, kv_usage=0.25),
    )


async def test_a_beat_is_read_back_whole(send: SendCommand, ready: Announcement) -> None:
    replicas = Replicas(send)
    await replicas.beat(ready)
    [heard] = await replicas.live(ready.pool)
    assert heard.announcement == ready
    assert 0 <= heard.age < 1.5
    assert await replicas.live("a pool without replicas") == []


async def test_the_newest_beat_counts(send: SendCommand, ready: Announcement) -> None:
    replicas = Replicas(send)
    draining = msgspec.structs.replace(ready, state="draining")
    other = msgspec.structs.replace(ready, id="another")
    for each in (ready, other, draining):
        await replicas.beat(each)
    assert [heard.announcement for heard in await replicas.live(ready.pool)] == [other, draining]


async def test_who_is_silent_for_a_lease_is_not_read(
    send: SendCommand, ready: Announcement
) -> None:
    replicas = Replicas(send, lease_seconds=0.05)
    await replicas.beat(ready)

    async def gone() -> bool:
        return await replicas.live(ready.pool) == []

    await eventually_async(gone)
    await replicas.beat(ready)
    assert len(await replicas.live(ready.pool)) == 1


async def test_who_leaves_is_gone_at_once(send: SendCommand, ready: Announcement) -> None:
    replicas = Replicas(send)
    await replicas.beat(ready)
    await replicas.leave(ready.pool, ready.id)
    assert await replicas.live(ready.pool) == []


async def test_the_long_silent_are_removed_when_somebody_joins(
    send: SendCommand, ready: Announcement
) -> None:
    replicas = Replicas(send)
    key = f"sluice:pool:{ready.pool}:replicas"
    await send("HSET", key, "old", "1 {}")
    await replicas.beat(ready)
    assert await send("HKEYS", key) == [b"one"]


async def test_what_cannot_be_read_is_left_out(send: SendCommand, ready: Announcement) -> None:
    replicas = Replicas(send)
    await replicas.beat(ready)
    await send("HSET", f"sluice:pool:{ready.pool}:replicas", "odd", "99999999999999 {}")
    assert [heard.announcement.id for heard in await replicas.live(ready.pool)] == ["one"]


async def test_redis_away_is_said(ready: Announcement) -> None:
    link = RedisLink("redis://127.0.0.1:1/0")
    with pytest.raises(RedisError):
        await Replicas(link.send).beat(ready)
