"""The scripts that run in Redis, by themselves."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from redis.asyncio import Redis

from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.counters import Script
from tests.servers import RunningServer


@pytest.mark.parametrize("held", [("0", "2"), ("2", "0")])
async def test_a_dead_process_gives_back_its_slots_of_every_scope(
    valkey: RunningServer, held: tuple[str, str]
) -> None:
    """Those where it holds none just now are no obstacle."""
    link = RedisLink(valkey.url)
    await link.connect()
    async with Redis.from_url(valkey.url) as client:
        redis: Any = client
        await redis.zadd("sluice:q:beats", {"dead": 1})
        for number, slots in enumerate(held):
            key = f"sluice:q:s:team:reap-{number}"
            await redis.hset(key, mapping={"S": 5, "s:dead": slots})
            await redis.sadd("sluice:q:p:dead", key)
        assert await Script("reap.lua").run(link, "dead") == 1
        for number, slots in enumerate(held):
            found = await redis.hgetall(f"sluice:q:s:team:reap-{number}")
            assert found == {b"S": str(5 - int(slots)).encode()}
        assert not await redis.exists("sluice:q:p:dead")
    link.drop()


async def test_when_the_whole_minute_is_promised_all_others_are_told_a_minute(
    valkey: RunningServer,
) -> None:
    link = RedisLink(valkey.url)
    await link.connect()
    key, script = f"sluice:q:s:key:{uuid4().hex}", Script("admit.lua")

    async def ask(requests: int) -> list[Any]:
        scope = [key, 3, -1, -1, 0, [], (0, 0, 0), []]
        message = ("one", [scope], [[10, 0, 1, 1]] * requests)
        reply = await script.run(link, msgspec.msgpack.encode(message))
        answers: list[Any] = msgspec.msgpack.decode(reply)[1]
        return answers

    assert await ask(3) == [0, 0, 0]
    waits = [wait for _, _, wait in await ask(8) + await ask(8)]
    assert all(0 < wait <= 60_500 for wait in waits[:3]), "these have a place"
    assert set(waits[3:]) == {60_500}
    async with Redis.from_url(valkey.url) as client:
        redis: Any = client
        fields = await redis.hgetall(key)
    promised = [int(value) for field, value in fields.items() if field.startswith(b"q")]
    assert sum(promised) == 3
    link.drop()
