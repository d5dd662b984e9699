"""Admission against the real Valkey: atomic over levels, exact over processes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.accounts import Account, Pot
from sluice.gateway.quotas.admission import (
    Admission,
    AdmissionAway,
    AdmissionRefused,
    Reservation,
)
from sluice.gateway.quotas.counters import Counters
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Budget, Level, Limits, Policy, Scope
from tests.harness.polling import eventually_async
from tests.servers import RunningServer

ONE = Need(tokens=10, nano_usd=1_000)


class Watcher:
    """What the counters said."""

    def __init__(self) -> None:
        self.alerts: list[str] = []
        self.commands = 0

    def told(self, requests: int, seconds: float) -> None:
        self.commands += 1

    def alert(self, account: Account, pot: Pot) -> None:
        self.alerts.append(pot.key)


class Process:
    """One gateway process's admission."""

    def __init__(self, link: RedisLink, redis: Redis, leases: bool = False) -> None:
        self.name = uuid4().hex
        self.link = link
        self.redis = redis
        self.watcher = Watcher()
        self.counters = Counters(link, self.name, self.watcher, leases=leases)
        self.admission = Admission(self.counters, self.seed, LocalLimits(lambda: 1))

    async def seed(self, scope: Scope, pot: Pot) -> None:
        await self.redis.hset(pot.key, "seeded", "1")

    async def admit(self, policy: Policy, need: Need = ONE) -> Reservation:
        return await self.admission.admit(policy, need)

    async def refused(self, policy: Policy, need: Need = ONE) -> AdmissionRefused:
        with pytest.raises(AdmissionRefused) as caught:
            await self.admission.admit(policy, need)
        return caught.value

    async def settle(self, reservation: Reservation, tokens: int = 10, nano: int = 1_000) -> None:
        self.admission.settle(reservation, tokens, nano, int(self.counters.now_ms() * 1000))
        await self.counters.flush()


def policy(**levels: Limits) -> Policy:
    """A caller with limits at the named levels, all of them new."""
    order: tuple[Level, ...] = ("organisation", "team", "key")
    return Policy.of(
        Scope(level, uuid4().hex, level, levels.get(level, Limits())) for level in order
    )


@pytest.fixture
async def redis(valkey: RunningServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey.url) as client:
        yield client


@pytest.fixture
async def processes(valkey: RunningServer, redis: Redis) -> AsyncIterator[Any]:
    links: list[RedisLink] = []

    async def make(leases: bool = False) -> Process:
        link = RedisLink(valkey.url)
        await link.connect()
        links.append(link)
        return Process(link, redis, leases)

    yield make
    for link in links:
        link.drop()


async def age(redis: Redis, scope: Scope, seconds: float) -> None:
    """Let a scope's minute go by: what was counted was counted so much earlier."""
    bare: Any = redis
    key = f"sluice:q:s:{scope.level}:{scope.id}"
    back = math.ceil(seconds * 4)
    moved: dict[Any, Any] = {}
    for name, value in (await bare.hgetall(key)).items():
        field = name.decode()
        if field in ("lo", "hi", "P"):
            moved[field] = int(value) - back
        elif field[0] in "rtqu" and field[1:].isdigit():
            moved[f"{field[0]}{int(field[1:]) - back}"] = value
            await bare.hdel(key, field)
    await bare.hset(key, mapping=moved)


DIMENSIONS = {
    "requests": Limits(requests_per_minute=3),
    "tokens": Limits(tokens_per_minute=39),
    "concurrency": Limits(max_concurrent=3),
    "budget": Limits(budgets=(Budget("day", Decimal("0.0000039")),)),
}


@pytest.mark.parametrize("level", ["organisation", "team", "key"])
@pytest.mark.parametrize("dimension", DIMENSIONS)
async def test_each_limit_of_each_level_binds(processes: Any, level: str, dimension: str) -> None:
    process, caller = await processes(), policy(**{level: DIMENSIONS[dimension]})
    for _ in range(3):
        await process.admit(caller)
    refused = (await process.refused(caller)).refused
    assert (refused.account.scope.level, refused.dimension) == (level, dimension)


@pytest.mark.parametrize("dimension", DIMENSIONS)
async def test_one_limit_holds_over_processes(processes: Any, dimension: str) -> None:
    several = [await processes() for _ in range(4)]
    caller = policy(team=DIMENSIONS[dimension])
    results = await asyncio.gather(
        *(process.admit(caller) for process in several for _ in range(8)), return_exceptions=True
    )
    let_in = [each for each in results if isinstance(each, Reservation)]
    assert len(let_in) == 3
    assert all(isinstance(each, Reservation | AdmissionRefused) for each in results)


async def test_a_refusal_by_one_limit_consumes_nothing_of_the_others(processes: Any) -> None:
    process = await processes()
    team = Scope("team", uuid4().hex, "", Limits(requests_per_minute=5, tokens_per_minute=1000))
    narrow = Policy.of([team, Scope("key", uuid4().hex, "", Limits(max_concurrent=0))])
    wide = Policy.of([team, Scope("key", uuid4().hex, "", Limits(max_concurrent=100))])
    for _ in range(20):
        assert (await process.refused(narrow)).refused.dimension == "concurrency"
    for _ in range(5):
        await process.admit(wide)
    assert (await process.refused(wide)).refused.dimension == "requests"


async def test_settling_gives_back_what_was_not_used(processes: Any) -> None:
    process = await processes()
    budget = Budget("month", Decimal("0.00001"))
    caller = policy(team=Limits(tokens_per_minute=100, max_concurrent=1, budgets=(budget,)))
    for _ in range(8):
        reservation = await process.admit(caller, Need(tokens=60, nano_usd=3_000))
        await process.settle(reservation, tokens=5, nano=1_000)
    # 40 tokens and 8,000 nano-USD are used by now
    assert (await process.refused(caller, Need(61, 1))).refused.dimension == "tokens"
    assert (await process.refused(caller, Need(1, 2_001))).refused.dimension == "budget"
    await process.admit(caller, Need(60, 2_000))


async def test_more_than_expected_counts_too(processes: Any) -> None:
    process, caller = await processes(), policy(key=Limits(tokens_per_minute=100))
    await process.settle(await process.admit(caller, Need(10, 0)), tokens=95, nano=0)
    assert (await process.refused(caller, Need(6, 0))).refused.dimension == "tokens"
    await process.admit(caller, Need(5, 0))


async def test_whoever_waits_as_told_gets_in(processes: Any, redis: Redis) -> None:
    process, caller = await processes(), policy(key=Limits(requests_per_minute=4))
    scope = caller.counted[0]
    for _ in range(2):
        await process.admit(caller)
    await age(redis, scope, 10)
    for _ in range(2):
        await process.admit(caller)
    waits = [(await process.refused(caller)).refused.seconds for _ in range(4)]
    assert all(wait is not None for wait in waits)
    assert waits[0] == pytest.approx(50.5, abs=0.6)
    assert waits[1] == pytest.approx(50.5, abs=0.6)
    # two are promised that already: the next are told when more will have left
    assert waits[2] == pytest.approx(60.5, abs=0.6)
    assert waits[3] == pytest.approx(60.5, abs=0.6)
    await age(redis, scope, waits[1])
    for _ in range(2):
        await process.admit(caller)
    await process.refused(caller)
    await age(redis, scope, waits[3] - waits[1])
    for _ in range(2):
        await process.admit(caller)


async def test_what_never_fits_is_told_no_time(processes: Any) -> None:
    process, caller = await processes(), policy(key=Limits(tokens_per_minute=100))
    refused = (await process.refused(caller, Need(101, 0))).refused
    assert (refused.dimension, refused.seconds) == ("tokens", None)


async def test_a_minute_goes_by(processes: Any, redis: Redis) -> None:
    process, caller = await processes(), policy(key=Limits(requests_per_minute=3))
    for _ in range(5):
        for _ in range(3):
            await process.settle(await process.admit(caller))
        await process.refused(caller)
        await age(redis, caller.counted[0], 61)
    fields = await redis.hlen(f"sluice:q:s:key:{caller.counted[0].id}")
    assert fields < 40, "old sub-windows are gone"


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(processes: Any) -> None:
    process, caller = await processes(), policy(key=Limits(max_concurrent=2))
    waiting = [asyncio.ensure_future(process.admit(caller)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await process.counters.flush()
    for _ in range(2):
        await process.admit(caller)
    await process.refused(caller)


async def test_a_lost_connection_leaves_nothing_behind(processes: Any) -> None:
    process, caller = await processes(), policy(key=Limits(max_concurrent=2))
    waiting = [asyncio.ensure_future(process.admit(caller)) for _ in range(2)]
    await asyncio.sleep(0)
    process.link.drop()  # the command may have run, and nobody knows
    assert all(
        isinstance(each, AdmissionAway)
        for each in await asyncio.gather(*waiting, return_exceptions=True)
    )
    await process.link.connect()
    for _ in range(2):
        await process.admit(caller)
    await process.refused(caller)


async def test_positions_are_found_again_after_redis_lost_them(
    processes: Any, redis: Redis
) -> None:
    process, caller = await processes(), policy(key=Limits(max_concurrent=3))
    held = [await process.admit(caller) for _ in range(2)]
    await redis.delete(f"sluice:q:s:key:{caller.counted[0].id}")
    process.admission.retell()
    await process.counters.flush()
    other = await processes()
    await other.admit(caller)
    await other.refused(caller)
    for each in held:
        await process.settle(each)
    await other.admit(caller)


async def test_an_alert_is_told_once_over_processes(processes: Any) -> None:
    several = [await processes() for _ in range(3)]
    caller = policy(team=Limits(budgets=(Budget("day", None, Decimal("0.000003")),)))
    scope = caller.counted[0]
    await several[0].seed(scope, Account.of(scope, Spend(), several[0].counters.now_ms()).pots[0])
    for process in several * 2:
        await process.settle(await process.admit(caller))
    assert sum(len(process.watcher.alerts) for process in several) == 1


async def test_a_hot_scope_is_served_from_capacity_taken_ahead(processes: Any) -> None:
    process = await processes(leases=True)
    limits = Limits(
        requests_per_minute=100_000,
        tokens_per_minute=10_000_000,
        max_concurrent=1_000,
        budgets=(Budget("day", Decimal(1)),),
    )
    caller = policy(organisation=limits, team=limits, key=limits)

    async def hot() -> bool:
        before = process.watcher.commands
        for _ in range(200):
            process.admission.settle(await process.admit(caller), 10, 1_000)
        return bool(process.watcher.commands - before < 20)

    await eventually_async(hot)


async def test_leases_never_let_more_in_than_the_limit(processes: Any) -> None:
    several = [await processes(leases=True) for _ in range(3)]
    caller = policy(team=Limits(requests_per_minute=2_000, max_concurrent=50))
    in_progress = most = let_in = 0

    async def client(process: Process) -> None:
        nonlocal in_progress, most, let_in
        while True:
            try:
                reservation = await process.admit(caller)
            except AdmissionRefused as error:
                if error.refused.dimension == "requests":
                    return
                await asyncio.sleep(0.001)
                continue
            in_progress += 1
            let_in += 1
            most = max(most, in_progress)
            await asyncio.sleep(0.002)
            in_progress -= 1
            process.admission.settle(reservation, 10, 0)

    await asyncio.gather(*(client(process) for process in several for _ in range(40)))
    assert most <= 50
    assert 1_960 <= let_in <= 2_000


class TestTiers:
    """Levels that count batch requests by themselves."""

    async def test_the_rates_of_the_tiers_are_apart(self, processes: Any) -> None:
        one = await processes()
        caller = policy(team=Limits(requests_per_minute=1, batch_requests_per_minute=2))
        await one.admit(caller)
        await one.refused(caller)
        for _ in range(2):
            await one.admission.admit(caller, ONE, batch=True)
        with pytest.raises(AdmissionRefused) as caught:
            await one.admission.admit(caller, ONE, batch=True)
        assert caught.value.refused.account.scope.part == "batch"

    async def test_their_budget_is_one(self, processes: Any) -> None:
        one, other = await processes(), await processes()
        half = Budget(period="day", limit_usd=Decimal("0.000002"))
        caller = policy(team=Limits(batch_max_concurrent=5, budgets=(half,)))
        await one.settle(await one.admit(caller))
        await other.settle(await other.admission.admit(caller, ONE, batch=True))
        assert (await one.refused(caller)).refused.dimension == "budget"
        with pytest.raises(AdmissionRefused):
            await one.admission.admit(caller, ONE, batch=True)

    async def test_a_tier_without_a_rate_of_its_own_is_free_of_the_others(
        self, processes: Any
    ) -> None:
        one = await processes()
        caller = policy(key=Limits(requests_per_minute=0, batch_max_concurrent=1))
        first = await one.admission.admit(caller, ONE, batch=True)
        with pytest.raises(AdmissionRefused):
            await one.admission.admit(caller, ONE, batch=True)
        await one.settle(first)
        await one.admission.admit(caller, ONE, batch=True)

    async def test_without_limits_of_its_own_it_counts_with_the_others(
        self, processes: Any
    ) -> None:
        one = await processes()
        caller = policy(team=Limits(max_concurrent=1))
        assert caller.counted == caller.counted_batch
        await one.admission.admit(caller, ONE, batch=True)
        await one.refused(caller)
