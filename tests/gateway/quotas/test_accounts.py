"""What an account has taken ahead, and how it is renewed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sluice.gateway.quotas.accounts import LEASE_SECONDS, Account
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Budget, Limits, Scope

LIMITS = Limits(
    requests_per_minute=100_000,
    tokens_per_minute=10_000_000,
    max_concurrent=1_000,
    budgets=(Budget("day", Decimal(100)),),
)
NEED = Need(tokens=10, nano_usd=1_000)
OLD, NEW = 7, 8


class Hot:
    """A hot account and its exchange with the counters, which grant what it wishes."""

    def __init__(self) -> None:
        self.account = Account.of(Scope("team", "t", "t", LIMITS), Spend(), 1_800_000_000_000.0)
        self.now = 100.0
        self.granted: list[int] = []

    def ask(self) -> list[Any]:
        """The positions as they are told, at a pace of 1,000 requests a second."""
        elapsed = self.now - self.account.pace._since
        self.account.pace.asked(int(1_000 * elapsed), int(10_000 * elapsed), int(1e6 * elapsed))
        return self.account.message(self.now, may_lease=True, keeps=True)

    def hear(self, message: list[Any], window: int, grant: bool = True) -> None:
        ahead, money = message[6], message[7][0][5]
        requests, tokens, slots, nano_usd = (*ahead, money) if grant else (0, 0, 0, 0)
        self.granted = [requests, tokens, slots, nano_usd]
        told = [requests, tokens, slots, requests, tokens, slots, window, [(0, 0, nano_usd, 0)]]
        self.account.heard(told, self.account.all_pots, self.now)

    @property
    def ahead(self) -> list[int]:
        account = self.account
        pots = [pot.ahead for pot in account.pots]
        return [account.ahead_requests, account.ahead_tokens, account.ahead_slots, *pots]


def hot() -> Hot:
    """One that has capacity ahead, and one request in progress."""
    made = Hot()
    made.hear(made.ask(), OLD)
    assert made.account.covers(NEED, made.now)
    made.account.take(NEED)
    return made


def test_what_is_fresh_is_kept() -> None:
    site = hot()
    before = site.ahead
    site.now += LEASE_SECONDS / 4
    message = site.ask()
    assert message[6] == (0, 0, 0)
    site.hear(message, NEW)
    assert site.ahead == before


def test_what_is_left_is_used_until_more_is_there_and_goes_back_then() -> None:
    site = hot()
    requests, tokens, slots, _ = site.ahead
    site.now += LEASE_SECONDS * 0.8
    message = site.ask()
    assert min(message[6]) > 0
    assert message[4] == 1 + slots
    assert site.account.covers(NEED, site.now)
    site.account.take(NEED)
    site.hear(message, NEW)
    assert site.ahead == site.granted
    assert site.account.ahead_window == NEW
    told = site.ask()
    assert told[5] == [OLD, -(requests - 1), -(tokens - NEED.tokens)]
    assert told[4] == 2 + site.granted[2]
    assert told[7][0][4] == 2 * NEED.nano_usd + site.granted[3]


def test_where_no_more_is_ample_what_was_left_goes_back_too() -> None:
    site = hot()
    site.now += LEASE_SECONDS * 0.8
    site.hear(site.ask(), NEW, grant=False)
    assert site.ahead == [0, 0, 0, 0]
    assert not site.account.leasing
    assert site.account.shifts[OLD][0] < 0


def test_what_has_lapsed_goes_back_at_once() -> None:
    site = hot()
    requests = site.account.ahead_requests
    site.now += LEASE_SECONDS
    message = site.ask()
    assert message[5][:2] == [OLD, -requests]
    assert not site.account.covers(NEED, site.now)


def test_what_remains_is_the_same_before_and_after_it_goes_back() -> None:
    site = hot()
    left = site.account.ahead_requests
    site.now += LEASE_SECONDS * 0.8
    message = site.ask()
    site.hear(message, NEW)
    assert site.account.remaining_requests == 100_000 + left
