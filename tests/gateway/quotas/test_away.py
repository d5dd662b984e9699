"""Admission by local limits while Redis is away, and what Redis hears of it when it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.admission import Admission, AdmissionRefused
from sluice.gateway.quotas.counters import Counters
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import Need
from sluice.gateway.tenancy.limits import Limits, Policy, Scope
from tests.gateway.quotas.test_counters import Watcher
from tests.servers import RunningServer

ONE = Need(tokens=10)


class Open:
    """One gateway process of several, which lets in by local limits while Redis is away."""

    def __init__(self, url: str, processes: int) -> None:
        self.link = RedisLink(url)
        self.counters = Counters(self.link, uuid4().hex, Watcher(), leases=False)
        local = LocalLimits(lambda: processes)
        self.admission = Admission(self.counters, self._seed, local, "open")

    async def let_in(self, policy: Policy, at_most: int = 100) -> int:
        """Requests until one is refused, or so many; all of them are over at once."""
        for count in range(at_most):
            try:
                reservation = await self.admission.admit(policy, ONE)
            except AdmissionRefused:
                return count
            self.admission.settle(reservation, 4, 0)
        return at_most

    async def _seed(self, *_: object) -> None:
        """There are no budgets here."""


@pytest.fixture
async def start(valkey: RunningServer) -> AsyncIterator[Callable[[int], Open]]:
    made: list[Open] = []

    def make(processes: int) -> Open:
        made.append(Open(valkey.url, processes))
        return made[-1]

    yield make
    for process in made:
        process.link.drop()


def caller(limits: Limits) -> Policy:
    return Policy.of([Scope("key", uuid4().hex, "", limits)])


async def test_each_process_lets_its_share_in(start: Callable[[int], Open]) -> None:
    policy = caller(Limits(requests_per_minute=20))
    assert await start(2).let_in(policy) == 10
    assert await start(4).let_in(policy) == 5


@pytest.mark.parametrize(("most", "let_in"), [(0, 0), (1, 1), (4, 2)])
async def test_slots_are_shared_too(start: Callable[[int], Open], most: int, let_in: int) -> None:
    """One at least, where the limit is not nothing: somebody must be served."""
    process, policy = start(2), caller(Limits(max_concurrent=most))
    for _ in range(let_in):
        await process.admission.admit(policy, ONE)
    with pytest.raises(AdmissionRefused):
        await process.admission.admit(policy, ONE)


async def test_redis_hears_of_it_when_it_is_back(start: Callable[[int], Open]) -> None:
    policy = caller(Limits(requests_per_minute=20, tokens_per_minute=100))
    one, other = start(2), start(2)
    assert await one.let_in(policy, 5) == 5
    for process in (one, other):
        await process.link.connect()
    one.admission.retell()
    await one.counters.flush()
    # five requests of 4 tokens each are counted: 80 tokens are left, for 8 that reserve 10
    for _ in range(8):
        await other.admission.admit(policy, ONE)
    with pytest.raises(AdmissionRefused) as refusal:
        await other.admission.admit(policy, ONE)
    assert refusal.value.refused.dimension == "tokens"
