"""The looks at replicas, one at a time."""

from __future__ import annotations

import asyncio

import pytest

from sluice.backends.vllm import Finding
from sluice.router.pool.health import HealthMonitor
from tests.router.pool.live_fakes import FakeInspector, Harness, piece


def monitor(pool: Harness) -> HealthMonitor:
    return HealthMonitor(pool.pool)


async def look(pool: Harness, name: str = "a", seconds: float = 0.4) -> None:
    pool.clock.now += seconds
    await monitor(pool).look(pool.pool.roster[name])


async def test_an_idle_replica_is_asked_for_a_token_now_and_then() -> None:
    pool = Harness("a")
    for _ in range(26):  # 10.4 seconds
        await look(pool)
    assert pool.inspectors["a"].probes == 2


async def test_a_busy_one_only_when_it_is_silent() -> None:
    pool = Harness("a")
    gate = asyncio.Event()
    pool["a"].pieces = [piece(), piece(), gate, piece()]
    response = await pool.pool.send(pool.request())
    await response.next()
    pool.clock.now += 0.3
    await response.next()
    await look(pool, seconds=0.3)
    assert pool.inspectors["a"].probes == 0
    await look(pool, seconds=0.3)
    assert pool.inspectors["a"].probes == 1
    response.close()


@pytest.mark.parametrize(("finding", "looks"), [("unreachable", 1), ("slow", 2), ("failed", 2)])
async def test_bad_findings_eject(finding: Finding, looks: int) -> None:
    pool = Harness()
    pool["a"].finding = finding
    for _ in range(looks):
        assert pool.states()["a"] == "ready"
        await look(pool)
    assert pool.states() == {"a": "ejected", "b": "ready"}


async def test_it_comes_back_slowly() -> None:
    pool = Harness()
    pool["a"].finding = "unreachable"
    await look(pool)
    await look(pool, seconds=6)
    assert pool.states()["a"] == "ejected"
    pool["a"].finding = "ok"
    await look(pool)
    assert pool.states()["a"] == "ready"
    assert pool.pool.scheduler.loads["a"].weight == pytest.approx(0.1)
    pool.clock.now += 60
    pool.pool.tick(pool.clock.now)
    assert pool.pool.scheduler.loads["a"].weight == 1.0


async def test_being_out_for_long_does_not_make_it_longer() -> None:
    pool = Harness()
    pool["a"].finding = "unreachable"
    for _ in range(1000):
        await look(pool)
    pool["a"].finding = "ok"
    await look(pool)
    assert pool.states()["a"] == "ready"


class Silent(FakeInspector):
    """Answers late; a token of a request comes meanwhile."""

    def __init__(self, pool: Harness) -> None:
        super().__init__(pool["a"])
        self._pool = pool

    async def health(self, seconds: float) -> Finding:
        self._pool.clock.now += seconds
        self._pool.pool.roster["a"].heard = self._pool.clock.now
        return "slow"


async def test_a_late_answer_is_forgiven_where_tokens_came() -> None:
    pool = Harness()
    pool.pool.roster["a"].inspector = Silent(pool)
    for _ in range(5):
        await look(pool)
    assert pool.states()["a"] == "ready"


async def test_one_that_joins_is_proven_first() -> None:
    pool = Harness("a")
    pool.pool.roster.remove("a")
    replica = pool.pool.join("a", "http://a")
    assert not replica.member.takes_requests
    await look(pool)
    assert replica.member.takes_requests
