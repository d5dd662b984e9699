"""Admission: the stage of the request path that lets a request in, and settles what it used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import structlog

from sluice.gateway.quotas.accounts import WINDOW_MS, Account, Pot
from sluice.gateway.quotas.counters import Counters, CountersAway, Refused, Windows, covered
from sluice.gateway.quotas.headers import Left, left_of
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.share import Share
from sluice.gateway.quotas.spend import QUARTER_MS, Spend
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


@dataclass(slots=True, eq=False)
class _Caller:
    """The accounts of one caller's levels, which follow the levels' limits and the time.

    Attributes:
        policy: the caller's.
        counted: its levels, those of its interactive or of its batch requests.
        accounts, pots: as they are while nothing changes.
        until_ms: when the first of their periods ends, milliseconds since the epoch.
        changes: of all accounts, when these were looked at.
        share: of what the accounts have taken ahead, while one is open.
    """

    policy: Policy
    counted: tuple[Scope, ...]
    accounts: tuple[Account, ...]
    pots: tuple[tuple[Pot, ...], ...]
    until_ms: float
    changes: int
    share: Share | None = None


class Reservation(msgspec.Struct, eq=False, gc=False):
    """A request that was let in; to be settled exactly once, see `Admission.settle`. One without a
    slot holds nothing, and need not be.

    Attributes:
        left: of its caller's limits on requests, and of those on tokens.
    """

    caller: _Caller
    pots: tuple[tuple[Pot, ...], ...]
    windows: Windows
    need: Need
    began: float
    left: Left
    settled: bool = False


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
        self._callers: dict[int, _Caller] = {}  # by the place in memory of `counted`
        self._sharing: list[_Caller] = []  # who have a share open
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
        self._close_shares()
        accounts = self._all()
        for account in accounts:
            account.give_back()
        self._counters.tell(accounts, at_once=False)
        try:
            async with asyncio.timeout(2):
                await self._counters.flush()
        except (CountersAway, TimeoutError):
            _log.warning("quota positions not told at the end")

    def from_share(self, policy: Policy, need: Need, *, batch: bool = False) -> Reservation | None:
        """What `admit` does first: let a request in by the share that is open for its caller.

        As long as it is open nothing has changed that would have to be looked at.

        Returns:
            None where there is none, or not enough in it.
        """
        counted = policy.counted_batch if batch else policy.counted
        caller = self._callers.get(id(counted))
        if caller is None or caller.counted is not counted or (share := caller.share) is None:
            return None
        now = self._clock()
        if not share.take(need, now):
            return None
        return Reservation(caller, share.pots, share.windows, need, now, share.left)

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
        reservation = self.from_share(policy, need, batch=batch)
        if reservation is not None:
            return reservation
        caller = self._caller(policy, batch)
        if caller.share is not None:
            caller.share.close()
        now = self._clock()
        enough = covered(caller.accounts, need, now)
        if not enough and _recalled(caller.accounts):  # there may be now
            enough = covered(caller.accounts, need, now)
        for account in caller.accounts:
            account.pace.asked(1, need.tokens, need.nano_usd)
        if enough:
            for account in caller.accounts:
                account.take(need)
            windows = tuple([account.ahead_window for account in caller.accounts])
            self._open_share(caller, need, now)
        else:
            windows = await self._ask(caller.accounts, policy, batch, need)
            caller = self._caller(policy, batch)
        return Reservation(caller, caller.pots, windows, need, now, left_of(caller.accounts))

    def now_us(self) -> int:
        """Now, microseconds since the epoch, by the clock that budgets' periods go by; a wall
        clock may be set, and would put a charge into another period."""
        return int(self._counters.now_ms() * 1000)

    def charge(self, policy: Policy, time_us: int, nano_usd: int) -> None:
        """Somebody was charged, for a request that was not let in by limits.

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

    def settle(
        self, reservation: Reservation, tokens: int, nano_usd: int, time_us: int = 0
    ) -> None:
        """What a request used takes the place of what it was let in with, and it is charged.
        Harmless when repeated.

        Args:
            tokens: prompt and output, as charged.
            nano_usd: its cost.
            time_us: when it came, microseconds since the epoch; of one that costs nothing it
                doesn't matter.
        """
        if reservation.settled:
            return
        reservation.settled = True
        need, windows, pots = reservation.need, reservation.windows, reservation.pots
        seconds = self._clock() - reservation.began
        caller = reservation.caller
        share = caller.share
        if (
            share is not None
            and share.pots is pots
            and share.settle(need, windows, tokens, nano_usd, time_us // 1000, seconds)
        ):
            return
        self.charge(caller.policy, time_us, nano_usd)
        for account, own, window in zip(caller.accounts, pots, windows, strict=True):
            account.end(need, own, window, tokens, nano_usd)
            account.pace.lasted(seconds)
        self._tell(caller)

    def tell(self, scope: Scope) -> None:
        """A scope's budgets were set: this process's part of them is told, even if nobody asks
        for anything here."""
        account = self._account(scope, self._counters.now_ms())
        self._counters.tell((account,), at_once=True)

    def standing(self, policy: Policy, *, batch: bool = False) -> tuple[Account, ...]:
        """The accounts of a caller, as they stand as far as this process knows; those of its
        interactive requests, or of its batch requests."""
        accounts = self._caller(policy, batch).accounts
        _recalled(accounts)
        return accounts

    def retell(self) -> None:
        """The global sums may have lost what this process told: tell all of it again."""
        self._counters.tell(self._all(), at_once=True)

    def _open_share(self, caller: _Caller, need: Need, now: float) -> None:
        """For the caller's next requests, where its accounts have enough."""
        leasing = [account.ahead_until for account in caller.accounts if account.leasing]
        if not leasing:
            return
        now_ms = self._counters.now_ms()
        changes_ms = min(caller.until_ms, (now_ms // QUARTER_MS + 1) * QUARTER_MS)
        until = min(*leasing, now + (changes_ms - now_ms) / 1000)
        closed = partial(self._share_closed, caller)
        caller.share = Share.opened(caller.accounts, caller.pots, need, now_ms, until, closed)
        if caller.share is not None:
            self._sharing.append(caller)

    def _share_closed(self, caller: _Caller, quarter: int, spent: int) -> None:
        caller.share = None
        self._sharing.remove(caller)
        self.charge(caller.policy, quarter * QUARTER_MS * 1000, spent)
        self._tell(caller)

    def _close_shares(self) -> None:
        for caller in self._sharing.copy():
            if caller.share is not None:
                caller.share.close()

    def _tell(self, caller: _Caller) -> None:
        """At once where others may wait for what has become free."""
        at_once = False
        for account in caller.accounts:
            at_once = at_once or (account.limited and not account.leasing)
        self._counters.tell(caller.accounts, at_once)

    async def _ask(
        self, accounts: tuple[Account, ...], policy: Policy, batch: bool, need: Need
    ) -> Windows:
        try:
            answer = await self._counters.ask(accounts, need)
            if isinstance(answer, Refused) and answer.dimension == "unready":
                # a budget that was set just now, or Redis has lost its data, or a period began
                accounts = self._caller(policy, batch).accounts
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

    def _caller(self, policy: Policy, batch: bool) -> _Caller:
        """The accounts of a caller's levels, as its limits and the time are now."""
        counted = policy.counted_batch if batch else policy.counted
        now_ms = self._counters.now_ms()
        caller = self._callers.get(id(counted))
        if (
            caller is None
            or caller.counted is not counted  # whose place in memory others have had before
            or now_ms >= caller.until_ms
            or caller.changes != self._changes
        ):
            accounts = tuple([self._account(scope, now_ms) for scope in counted])
            pots = tuple([account.pots for account in accounts])
            until_ms = min((account.pots_until for account in accounts), default=0.0)
            caller = _Caller(policy, counted, accounts, pots, until_ms, self._changes)
            self._callers[id(counted)] = caller
        return caller

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
            self._close_shares()
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


def _recalled(accounts: Iterable[Account]) -> bool:
    """Close the shares of accounts; whether there were any."""
    shared = [account for account in accounts if account.shares]
    for account in shared:
        account.recall()
    return bool(shared)
