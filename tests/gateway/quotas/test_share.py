"""A caller's share changes what is looked at for a request, and nothing of what is counted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.quotas.accounts import NONE, Account
from sluice.gateway.quotas.admission import Admission, Reservation
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import BARE_CALL, Need
from sluice.gateway.quotas.spend import QUARTER_MS
from sluice.gateway.tenancy.limits import Budget, Level, Limits, Policy, Scope

REQUESTS, TOKENS, SLOTS, NANO_USD = 400, 40_000, 100, 4_000_000
LIMITS = Limits(
    requests_per_minute=10_000,
    tokens_per_minute=1_000_000,
    max_concurrent=1_000,
    budgets=(Budget("day", Decimal(100)), Budget("month", Decimal(1000))),
)
ALERT = Limits(budgets=(Budget("day", None, Decimal(5)),))
START_MS = 1_800_000_000_000.0 // QUARTER_MS * QUARTER_MS


class Told:
    """Counters that only note what they are told."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.accounts: dict[str, Account] = {}

    def now_ms(self) -> float:
        return START_MS + self.seconds * 1000

    def tell(self, accounts: Any, at_once: bool) -> None:
        self.accounts |= {account.key: account for account in accounts}

    async def ask(self, accounts: tuple[Account, ...], need: Need) -> Any:
        """Let everything in, as it does what is far from its limits."""
        for account in accounts:
            account.begin(need)
        return tuple(7 for _ in accounts)


class Site:
    """Two keys of one team, whose accounts have taken much ahead."""

    def __init__(self, key_limits: Limits = LIMITS) -> None:
        self.told = Told()
        self.admission = Admission(
            self.told,  # type: ignore[arg-type]
            lambda scope, pot: pytest.fail("not asked for"),
            LocalLimits(lambda: 1),
            clock=lambda: self.told.seconds,
        )
        levels: tuple[Level, ...] = ("organisation", "team")
        above = [Scope(level, level, level, LIMITS) for level in levels]
        self.callers = [
            Policy.of([*above, Scope("key", name, name, key_limits)]) for name in ("one", "two")
        ]
        for policy in self.callers:
            for account in self.admission.standing(policy):
                account.ahead_until, account.ahead_window = 1e9, 7
                account.ahead_requests = REQUESTS if account.rpm != NONE else 0
                account.ahead_tokens = TOKENS if account.tpm != NONE else 0
                account.ahead_slots = SLOTS if account.most != NONE else 0
                account.leasing = account.limited
                for pot in account.pots:
                    pot.ahead = NANO_USD if pot.limit != NONE else 0

    def accounts(self, caller: int) -> tuple[Account, ...]:
        return self.admission.standing(self.callers[caller])


class Model:
    """What must have been counted at each account."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.admitted: list[tuple[int, Need]] = []
        self.ended: list[tuple[int, Need, int, int]] = []
        self.running: list[tuple[int, Reservation]] = []

    async def admit(self, caller: int, need: Need) -> Reservation:
        reservation = await self.site.admission.admit(self.site.callers[caller], need)
        self.admitted.append((caller, need))
        self.running.append((caller, reservation))
        return reservation

    def settle(self, number: int, tokens: int, nano_usd: int) -> None:
        caller, reservation = self.running.pop(number % len(self.running))
        need = reservation.need
        tokens, nano_usd = min(tokens, need.tokens), min(nano_usd, need.nano_usd)
        now_us = int(self.site.told.now_ms() * 1000)
        self.site.admission.settle(reservation, tokens, nano_usd, now_us)
        self.site.admission.settle(reservation, tokens, nano_usd, now_us)
        self.ended.append((caller, need, tokens, nano_usd))

    def check(self) -> None:
        for number in (0, 1):
            for account in self.site.accounts(number):
                self._check(account, {number} if account.scope.level == "key" else {0, 1})

    def _check(self, account: Account, callers: set[int]) -> None:
        admitted = [need for caller, need in self.admitted if caller in callers]
        ended = [(need, t, n) for caller, need, t, n in self.ended if caller in callers]
        running = [each.need for caller, each in self.running if caller in callers]
        spent = sum(nano_usd for _, _, nano_usd in ended)
        held = sum(need.nano_usd for need in running)
        assert account.slots == sum(need.slots for need in running)
        if account.leasing:
            assert account.ahead_requests == REQUESTS - len(admitted)
            assert account.ahead_tokens == TOKENS - sum(need.tokens for need in admitted)
            assert account.ahead_slots == SLOTS - account.slots
        shifted = sum(tokens for _, tokens in account.shifts.values())
        assert shifted == sum(tokens - need.tokens for need, tokens, _ in ended)
        assert not any(requests for requests, _ in account.shifts.values())
        for pot in account.pots:
            assert pot.held == held
            assert pot.spent == spent
            assert pot.ahead == (NANO_USD - held - spent if pot.limit != NONE else 0)
        if admitted:
            assert account.key in self.site.told.accounts


NEEDS = st.one_of(st.builds(Need, st.integers(0, 200), st.integers(0, 20_000)), st.just(BARE_CALL))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 1), NEEDS),
        st.tuples(st.just("settle"), st.integers(0, 99), st.integers(0, 200)),
        st.tuples(st.just("wait"), st.floats(0, 400), st.just(0)),
    ),
    max_size=80,
)


@given(steps=STEPS)
async def test_whatever_happens_the_sums_are_those_of_the_requests(steps: list[Any]) -> None:
    site = Site()
    model = Model(site)
    for what, first, second in steps:
        if what == "admit":
            await model.admit(first, second)
        elif what == "wait":
            site.told.seconds += first
        elif model.running:
            model.settle(first, second, second * 100)
    model.check()
    while model.running:
        model.settle(0, 50, 5_000)
    model.check()


async def test_a_caller_with_a_share_does_not_touch_its_accounts() -> None:
    site, need = Site(), Need(10, 1_000)
    model = Model(site)
    await model.admit(0, need)
    account = site.admission._callers[id(site.callers[0].counted)].accounts[0]
    before = account.ahead_requests
    for _ in range(20):
        await model.admit(0, need)
        model.settle(-1, 5, 500)
    assert account.ahead_requests == before
    assert len(account.shares) == 1
    model.check()
    assert not account.shares


async def test_what_one_caller_has_set_aside_another_still_gets() -> None:
    site = Site()
    model = Model(site)
    large = Need(300, 30_000)
    for caller in [0] * 40 + [1] * 60:
        await model.admit(caller, large)
    model.check()


async def test_what_is_left_falls_with_each_request() -> None:
    site = Site()
    model = Model(site)
    for account in site.accounts(0):
        account.remaining_requests, account.remaining_tokens = 500, 50_000
    told = [(await model.admit(0, Need(100, 1_000))).left for _ in range(10)]
    assert told == [((500 - n, 10_000), (50_000 - 100 * n, 1_000_000)) for n in range(1, 11)]


async def test_a_limit_that_changes_ends_the_share() -> None:
    site = Site()
    model = Model(site)
    await model.admit(0, Need(10, 1_000))
    old = site.callers[0]
    tighter = Limits(requests_per_minute=5, budgets=LIMITS.budgets)
    key = Scope("key", "one", "one", tighter)
    site.callers[0] = Policy.of([*old.scopes[:2], key])
    account = site.accounts(0)[2]
    assert account.rpm == 5
    assert not account.shares
    assert not account.leasing
    model.settle(0, 7, 700)
    assert [pot.spent for pot in account.pots] == [700, 700]


async def test_alerts_alone_set_nothing_aside_but_hear_what_was_spent() -> None:
    site = Site(ALERT)
    model = Model(site)
    for _ in range(30):
        await model.admit(0, Need(10, 1_000))
        model.settle(-1, 5, 500)
    assert site.accounts(0)[2].pots[0].spent == 15_000
