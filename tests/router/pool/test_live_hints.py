"""What gateways tell each other."""

from __future__ import annotations

import asyncio

import redis.asyncio

from sluice.router.pool.hints import HintExchange
from tests.harness.polling import eventually_async
from tests.router.pool.live_fakes import Harness, settle
from tests.servers import RunningServer

LONG = "word " * 1000


async def test_gateways_see_each_others_work(valkey: RunningServer) -> None:
    one, other = Harness("ab", placement="prefix_load"), Harness("ab", placement="prefix_load")
    other.pool.scheduler.loads.gateway = "gateway-2"
    client = redis.asyncio.Redis.from_url(valkey.url)
    exchanges = [
        HintExchange(client, {"p": pool.pool.scheduler}, gateway, pool.clock)
        for gateway, pool in (("gateway-1", one), ("gateway-2", other))
    ]
    for replica in one.replicas.values():
        replica.hangs = True
    for exchange in exchanges:
        await exchange.start()
    asking = asyncio.create_task(one.ask(LONG))

    async def seen() -> int:
        one.clock.now += 1.5  # so that everything is said again
        return other.outstanding()

    assert await eventually_async(seen) == 1
    index = other.pool.scheduler.index
    assert sum(index.size(name) for name in "ab") == 9
    await settle([asking])

    async def over() -> bool:
        one.clock.now += 1.5
        return other.outstanding() == 0

    await eventually_async(over)
    for exchange in exchanges:
        await exchange.stop()
    await client.aclose()


async def test_without_redis_each_goes_on_alone() -> None:
    pool = Harness("a")
    client = redis.asyncio.Redis.from_url("redis://127.0.0.1:1", socket_connect_timeout=0.2)
    exchange = HintExchange(client, {"p": pool.pool.scheduler}, "gateway-1", pool.clock)
    await exchange.start()
    for _ in range(3):
        await pool.ask(LONG)

    async def told() -> bool:
        return not pool.pool.scheduler.take_hints()

    await eventually_async(told)
    await exchange.stop()
    await client.aclose()


def test_nonsense_is_ignored() -> None:
    pool = Harness("a")
    exchange = HintExchange(None, {"p": pool.pool.scheduler}, "g", pool.clock)  # type: ignore[arg-type]
    for message in (b"", b"\xc1", b"[]", b"\x93\x01\x02\x03"):
        exchange.take(message)
    assert pool.outstanding() == 0
