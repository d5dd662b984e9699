"""All pools of a process, with what runs beside them."""

from __future__ import annotations

import pytest
import redis.asyncio

from sluice.router.pool.pools import Pools
from tests.harness.polling import eventually_async
from tests.router.pool.live_fakes import Harness
from tests.servers import RunningServer


async def test_a_pool_alone() -> None:
    pool = Harness("ab")
    pool["b"].finding = "unreachable"
    pools = Pools({"p": pool.pool}, None)
    pool.clock.now += 10
    await pools.start()
    assert pool.states() == {"a": "ready", "b": "ejected"}
    await pool.ask()

    async def told() -> bool:
        return not pool.pool.scheduler.take_hints()

    await eventually_async(told)
    await pools.stop()


async def test_operators_look_and_drain() -> None:
    pool = Harness("ab")
    pools = Pools({"p": pool.pool}, None)
    await pools.drain("p", "a")
    (seen,) = pools.snapshots()
    assert seen == pools.snapshot("p")
    assert [replica.state for replica in seen.replicas] == ["draining", "ready"]
    await pools.drain("p", "a", drained=False)
    assert pool.states()["a"] == "joining"
    assert pools.snapshot("other") is None
    for name, replica in (("other", "a"), ("p", "other")):
        with pytest.raises(KeyError):
            await pools.drain(name, replica)


async def test_a_drained_replica_stays_drained_over_a_restart(valkey: RunningServer) -> None:
    def connected() -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(valkey.url)

    before, after = Harness("xy"), Harness("xy")
    first = Pools({"p": before.pool}, connected())
    await first.start()
    await first.drain("p", "x")
    await first.stop()
    second = Pools({"p": after.pool}, connected())
    await second.start()
    assert after.states()["x"] == "draining"
    await second.drain("p", "x", drained=False)
    await second.stop()
