"""Processes that die, and what the ledger knows of them: against the real Postgres and Valkey."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import uuid_utils.compat
from redis.asyncio import Redis

from sluice.billing.events import UsageEvent
from sluice.billing.ledger import Ledger
from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.accounts import Account, Pot
from sluice.gateway.quotas.admission import Admission, AdmissionRefused, Reservation
from sluice.gateway.quotas.budgets import Budgets
from sluice.gateway.quotas.counters import Counters
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.periods import span_of
from sluice.gateway.quotas.presence import Presence
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Budget, Limits, Policy, Scope
from sluice.migrations import migrate
from tests.gateway.quotas.test_counters import Watcher

LEASE = 5.0
COST = 1_000
BUDGET = Limits(max_concurrent=10, budgets=(Budget("month", Decimal("0.00001")),))  # ten requests


class Clock:
    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


class Told:
    """Who has budgets, as a key ring tells it."""

    def __init__(self, scopes: list[Scope]) -> None:
        self.revision = 1
        self._scopes = scopes

    def budgeted(self) -> list[Scope]:
        return self._scopes


class Life:
    """One gateway process, with its beats by hand."""

    def __init__(self, link: RedisLink, pool: asyncpg.Pool, scopes: list[Scope]) -> None:
        self.id = str(uuid_utils.compat.uuid7())
        self.clock = Clock()
        self.counters = Counters(link, self.id, Watcher())
        self.budgets = Budgets(link, pool, Told(scopes), self.tell)
        self.admission = Admission(self.counters, self.budgets.seed, LocalLimits(lambda: 1))
        self.found_unknown = 0
        self.presence = Presence(
            link,
            self.id,
            heard_time=self.counters.set_time,
            unknown_here=self.unknown,
            lease_seconds=LEASE,
            clock=self.clock,
        )

    def tell(self, scope: Scope) -> None:
        self.admission.tell(scope)

    def unknown(self) -> None:
        self.found_unknown += 1
        self.budgets.forget()
        self.admission.retell()

    def settle(self, policy: Policy, reservation: Reservation) -> None:
        """The request is over, and cost what it was expected to."""
        self.admission.charge(policy, int(self.counters.now_ms() * 1000), COST)
        self.admission.settle(reservation, 1, COST)

    async def beat(self) -> None:
        await self.presence._beat_once()

    async def let_in(self, policy: Policy) -> int:
        """Requests until one is refused; none of them ends."""
        count = 0
        while True:
            try:
                await self.admission.admit(policy, Need(1, COST))
            except AdmissionRefused:
                return count
            count += 1


@pytest.fixture(scope="module")
def redis_url(new_redis: Any) -> str:
    url: str = new_redis()
    return url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushdb()
        yield client


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=3) as made:
        yield made


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisLink]:
    made = RedisLink(redis_url)
    yield made
    made.drop()


async def team(pool: asyncpg.Pool) -> Scope:
    """A team with a budget of ten requests a month."""
    made = await pool.fetchval(
        "INSERT INTO teams (id, organisation_id, name)"
        " VALUES ($1, (SELECT id FROM organisations), 'team') RETURNING id",
        uuid_utils.compat.uuid7(),
    )
    return Scope("team", str(made), "team", BUDGET)


def event(scope: Scope, gateway: str, time_us: int) -> UsageEvent:
    return UsageEvent(
        request_id=str(uuid_utils.compat.uuid7()),
        time_us=time_us,
        team_id=scope.id,
        key_id=str(UUID(int=1)),
        endpoint="chat/completions",
        model="m",
        model_used="m",
        deployment="d",
        tier="interactive",
        status="ok",
        cost_nano_usd=COST,
        gateway=gateway,
    )


async def test_a_dead_process_gives_back_slots_and_the_ledger_says_what_it_spent(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    scope = await team(pool)
    policy = Policy.of([scope])
    dies, lives = (Life(link, pool, [scope]) for _ in range(2))
    for life in (dies, lives):
        await life.beat()
    # six were let in: two of them finished, of which one was told to the counters in time
    reservations = [await dies.admission.admit(policy, Need(1, COST)) for _ in range(6)]
    dies.settle(policy, reservations[0])
    await dies.counters.flush()
    now_us = int(dies.counters.now_ms() * 1000)
    await Ledger(pool).store([event(scope, dies.id, now_us) for _ in range(2)])

    # silent, as Redis sees it; the other has been in touch all the time
    await redis.zadd("sluice:q:beats", {dies.id: 1})
    await lives.beat()
    assert await redis.zscore("sluice:q:beats", dies.id) is not None, "too early to say"
    lives.clock.now += LEASE + 1
    await lives.beat()
    assert await redis.zscore("sluice:q:beats", dies.id) is None

    slots = await redis.hget(f"sluice:q:s:team:{scope.id}", "S")
    assert slots == b"0"
    # all six are counted as money until the ledger has spoken
    pot = Account.of(scope, Spend(), lives.counters.now_ms()).pots[0]
    spent, held = await redis.hmget(pot.key, "spent", "held")
    assert int(spent or 0) + int(held or 0) == 6 * COST
    doubts: set[bytes] = await redis.smembers("sluice:q:doubt")  # type: ignore[assignment]
    lives.budgets._doubts = dict.fromkeys(doubts, 0)
    await lives.budgets._look()
    spent, held = await redis.hmget(pot.key, "spent", "held")
    assert (int(spent or 0), int(held or 0)) == (2 * COST, 0)
    assert await lives.let_in(policy) == 8


async def test_nobody_is_taken_for_dead_because_redis_was_away(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    quick, slow = (Life(link, pool, []) for _ in range(2))
    for life in (quick, slow):
        await life.beat()
    link.drop()
    quick.clock.now += 100
    await quick.beat()  # nobody answers
    await link.connect()
    await redis.zadd("sluice:q:beats", {slow.id: 1})
    await quick.beat()
    quick.clock.now += LEASE - 1
    await quick.beat()
    assert await redis.zscore("sluice:q:beats", slow.id) is not None
    await slow.beat()
    quick.clock.now += 2
    await quick.beat()
    assert await redis.zscore("sluice:q:beats", slow.id) is not None


async def test_a_process_that_was_buried_alive_tells_everything_again(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    scope = await team(pool)
    policy = Policy.of([scope])
    life = Life(link, pool, [scope])
    await life.beat()
    for _ in range(4):
        await life.admission.admit(policy, Need(1, COST))
    await redis.flushdb()
    await life.beat()
    await life.counters.flush()
    assert life.found_unknown == 1
    assert await redis.hget(f"sluice:q:s:team:{scope.id}", "S") == b"4"
    assert await life.let_in(policy) == 6


async def test_budgets_come_back_from_the_ledger_when_redis_lost_them(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    scope = await team(pool)
    policy = Policy.of([scope])
    life = Life(link, pool, [scope])
    await life.beat()
    now_us = int(life.counters.now_ms() * 1000)
    gone = [event(scope, "an-earlier-process", now_us) for _ in range(3)]
    await Ledger(pool).store([*gone, event(scope, life.id, now_us)])
    # this process's own is known to the ledger and to itself: it counts once
    life.settle(policy, await life.admission.admit(policy, Need(1, COST)))
    await life.counters.flush()
    await redis.flushdb()
    await life.beat()
    await life.counters.flush()
    assert await life.let_in(policy) == 6


async def test_periods_are_made_ready_before_they_begin(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    scope = await team(pool)
    life = Life(link, pool, [scope])
    ends_at = Account.of(scope, Spend(), life.counters.now_ms()).pots[0].span.ends_at
    life.budgets._now = lambda: ends_at - timedelta(minutes=10)
    await life.budgets._look()
    following = Pot(scope, scope.limits.budgets[0], span_of("month", "UTC", ends_at), Spend())
    assert await redis.hget(following.key, "seeded") == b"1"


async def test_a_process_that_leaves_holds_nothing(
    redis: Redis, pool: asyncpg.Pool, link: RedisLink
) -> None:
    await link.connect()
    scope = await team(pool)
    policy = Policy.of([scope])
    leaves, stays = (Life(link, pool, [scope]) for _ in range(2))
    for life in (leaves, stays):
        await life.beat()
    for _ in range(4):
        leaves.settle(policy, await leaves.admission.admit(policy, Need(1, COST)))
    await leaves.admission.stop()
    await leaves.presence.stop()
    assert await redis.zcard("sluice:q:beats") == 1
    assert await stays.let_in(policy) == 6
