"""Admission: the stage of the request path that lets a request in, and settles what it used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from sluice.gateway.quotas.accounts import WINDOW_MS, Account, Pot
from sluice.gateway.quotas.counters import Counters, CountersAway, Refused, Windows
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Part, Policy, Scope

#: How often positions that nobody waits for are told, in seconds.
TICK_SECONDS = 0.1

#: An account that nobody asked for is forgotten after so long, in seconds.
IDLE_SECONDS = 600.0

_log = structlog.get_logger("sluice.quotas")

_NONE: dict[Part, Account] = {}

WhenAway = Literal["closed", "open"]


class AdmissionRefused(Exception):
    """A limit does not allow the request.

    Attributes:
        refused: which one.
        need: what the request needs.
    """

    def __init__(self, refused: Refused, need: Need) -> None:
        super().__init__(refused.dimension)
        self.refused = refused
        self.need = need


class AdmissionAway(Exception):
    """The counters can't be asked, and without them nothing that is limited is let in."""


@dataclass(slots=True)
class Reservation:
    """A request that was let in; to be settled exactly once, see `Admission.settle`. One without a
    slot holds nothing, and need not be."""

    accounts: tuple[Account, ...]
    pots: tuple[tuple[Pot, ...], ...]
    windows: Windows
    need: Need
    began: float
    settled: bool = False


@dataclass(frozen=True, slots=True)
class _Caller:
    """The accounts of one caller's levels, which follow the levels' limits and the time.

    Attributes:
        counted: the levels, as the caller's policy has them.
        until_ms: when the first of their periods ends, milliseconds since the epoch.
        changes: of all accounts, when these were looked at.
    """

    counted: tuple[Scope, ...]
    accounts: tuple[Account, ...]
    until_ms: float
    changes: int


class Admission:
    """Lets requests in; see the module."""

    def __init__(
        self,
        counters: Counters,
        seed: Callable[[Scope, Pot], Awaitable[None]],
        local: LocalLimits,
        when_away: WhenAway = "closed",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        counters: the global sums.
        seed: makes a budget's sum known to the counters.
        local: what limits while the counters are away and `when_away` is open.
        when_away: refuse what is limited while the counters are away, or let it in by local
            limits.
        """
        self._counters = counters
        self._seed = seed
        self._local = local
        self._when_away = when_away
        self._clock = clock
        self._accounts: dict[str, dict[Part, Account]] = {}  # by their level's id
        self._callers: dict[int, _Caller] = {}
        self._changes = 0
        self._spend = Spend()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to tell positions."""
        self._task = asyncio.create_task(self._tick(), name="admission")

    async def stop(self) -> None:
        """Tell where things stand in the end; what can't be told now is given back when this
        process is found dead."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        accounts = self._all()
        for account in accounts:
            account.give_back()
        self._counters.tell(accounts, at_once=False)
        try:
            async with asyncio.timeout(2):
                await self._counters.flush()
        except (CountersAway, TimeoutError):
            _log.warning("quota positions not told at the end")

    async def admit(self, policy: Policy, need: Need, *, batch: bool = False) -> Reservation:
        """Let a request in, against every limit of every level at once.

        Args:
            policy: the caller's.
            need: what the request may need at most.
            batch: it is of the batch tier.

        Raises:
            AdmissionRefused: a limit does not allow it; nothing was consumed.
            AdmissionAway: see there.
        """
        scopes = policy.counted_batch if batch else policy.counted
        accounts = self._of(scopes)
        now = self._clock()
        covered = True
        for account in accounts:
            account.pace.asked(need)
            covered = covered and account.covers(need, now)
        if covered:
            for account in accounts:
                account.take(need)
            windows = tuple([account.ahead_window for account in accounts])
        else:
            windows = await self._ask(scopes, accounts, need)
        pots = tuple([account.pots for account in accounts])
        return Reservation(accounts, pots, windows, need, now)

    def now_us(self) -> int:
        """Now, microseconds since the epoch, by the clock that budgets' periods go by; a wall
        clock may be set, and would put a charge into another period."""
        return int(self._counters.now_ms() * 1000)

    def charge(self, policy: Policy, time_us: int, nano_usd: int) -> None:
        """A request was charged, whether or not it had limits when it came. Before `settle`.

        Args:
            policy: its caller's.
            time_us: when it came, microseconds since the epoch.
            nano_usd: its cost.
        """
        if not nano_usd:
            return
        time_ms = time_us // 1000
        self._spend.add(policy.scopes, time_ms, nano_usd)
        budgeted = [
            account
            for scope in policy.scopes
            for account in self._accounts.get(scope.id, _NONE).values()
            if account.pots
        ]
        for account in budgeted:
            account.charge(time_ms, nano_usd)
        self._counters.tell(budgeted, at_once=False)

    def settle(self, reservation: Reservation, tokens: int, nano_usd: int) -> None:
        """What a request used takes the place of what it was let in with. Harmless when repeated.

        Args:
            tokens: prompt and output, as charged.
            nano_usd: its cost, which is charged by itself: see `charge`.
        """
        if reservation.settled:
            return
        reservation.settled = True
        seconds = self._clock() - reservation.began
        at_once = False
        for account, pots, window in zip(
            reservation.accounts, reservation.pots, reservation.windows, strict=True
        ):
            account.end(reservation.need, pots, window, tokens, nano_usd)
            account.pace.lasted(seconds)
            at_once = at_once or (account.limited and not account.leasing)
        self._counters.tell(reservation.accounts, at_once)

    def tell(self, scope: Scope) -> None:
        """A scope's budgets were set: this process's part of them is told, even if nobody asks
        for anything here."""
        account = self._account(scope, self._counters.now_ms())
        self._counters.tell((account,), at_once=True)

    def standing(self, policy: Policy, *, batch: bool = False) -> list[Account]:
        """The accounts of a caller, as they stand as far as this process knows; those of its
        interactive requests, or of its batch requests."""
        return list(self._of(policy.counted_batch if batch else policy.counted))

    def retell(self) -> None:
        """The global sums may have lost what this process told: tell all of it again."""
        self._counters.tell(self._all(), at_once=True)

    async def _ask(
        self, scopes: tuple[Scope, ...], accounts: tuple[Account, ...], need: Need
    ) -> Windows:
        try:
            answer = await self._counters.ask(accounts, need)
            if isinstance(answer, Refused) and answer.dimension == "unready":
                # a budget that was set just now, or Redis has lost its data, or a period began
                accounts = self._of(scopes)
                for account in accounts:
                    for pot in account.pots:
                        await self._seed(account.scope, pot)
                answer = await self._counters.ask(accounts, need)
        except CountersAway:
            answer = self._by_local_limits(accounts, need)
        if not isinstance(answer, Refused):
            return answer
        if answer.dimension == "unready":
            raise AdmissionAway
        raise AdmissionRefused(answer, need)

    def _by_local_limits(self, accounts: tuple[Account, ...], need: Need) -> Refused | Windows:
        if self._when_away == "closed":
            raise AdmissionAway from None
        refused = self._local.judge(accounts, need)
        if refused is not None:
            return refused
        window = int(self._counters.now_ms() // WINDOW_MS)
        for account in accounts:
            account.begin_untold(need, window)
        return (window,) * len(accounts)

    def _of(self, scopes: tuple[Scope, ...]) -> tuple[Account, ...]:
        """The accounts of a caller's levels, as its limits and the time are now."""
        now_ms = self._counters.now_ms()
        caller = self._callers.get(id(scopes))
        if (
            caller is None
            or caller.counted is not scopes  # whose place in memory others have had before
            or now_ms >= caller.until_ms
            or caller.changes != self._changes
        ):
            accounts = tuple([self._account(scope, now_ms) for scope in scopes])
            until_ms = min((account.pots_until for account in accounts), default=0.0)
            caller = _Caller(scopes, accounts, until_ms, self._changes)
            self._callers[id(scopes)] = caller
        return caller.accounts

    def _account(self, scope: Scope, now_ms: float) -> Account:
        parts = self._accounts.setdefault(scope.id, {})
        account = parts.get(scope.part)
        if account is None:
            account = parts[scope.part] = Account.of(scope, self._spend, now_ms)
        elif account.follow(scope, now_ms):
            self._changes += 1
        return account

    def _all(self) -> list[Account]:
        return [account for parts in self._accounts.values() for account in parts.values()]

    async def _tick(self) -> None:
        forget_at = self._clock() + IDLE_SECONDS
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            # before they lapse where it goes on, so that nobody has to wait for the next
            due = [
                account
                for account in self._all()
                if account.leasing and now >= account.ahead_until - TICK_SECONDS
            ]
            self._counters.tell(due, at_once=True)  # and whatever else nobody waits for
            if now >= forget_at:
                self._forget()
                forget_at = now + IDLE_SECONDS

    def _forget(self) -> None:
        """Accounts without anything in progress are made again when they are needed. Those of
        budgets stay: what this process has spent is told in absolute terms."""
        self._callers.clear()  # of policies that are no more, and of accounts that go now
        for owner, parts in list(self._accounts.items()):
            for part, account in list(parts.items()):
                # whoever came lately may still wait for the counters' word
                busy, account.pace.asked_lately = account.pace.asked_lately or account.slots, False
                if not busy and not account.has_ahead and not account.all_pots:
                    del parts[part]
            if not parts:
                del self._accounts[owner]
