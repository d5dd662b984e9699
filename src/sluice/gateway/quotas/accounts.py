"""Accounts: what this process holds and has used of each scope's limits.

Everything here is in this process's memory and synchronous. What is held has been taken from the
global sums before; positions are told in absolute terms (see `admit.lua`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isqrt
from typing import TYPE_CHECKING, Any

from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.periods import Span, span_of
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Budget, Scope

if TYPE_CHECKING:
    from sluice.gateway.quotas.share import Share

#: Capacity of rates that was taken ahead may be used for so long, in seconds: `admit.lua` counts a
#: minute longer by as much.
LEASE_SECONDS = 0.25

#: A minute is counted in sub-windows of so many milliseconds, in so many of them; see `admit.lua`.
WINDOW_MS, WINDOWS = 250, 242

#: From so many requests a second on a scope is hot: capacity is taken ahead for it.
HOT_RATE = 40.0

#: How much more is taken ahead than the present pace would use.
_SPARE = 2.0

#: A limit that is not set, as the script has it.
NONE = -1
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a scope would take ahead."""

    requests: int = 0
    tokens: int = 0
    slots: int = 0
    nano_usd: int = 0


NO_WISH = Wish()

#: Requests, tokens, concurrent requests, nano-USD.
Amounts = tuple[int, int, int, int]


@dataclass(slots=True)
class Pace:
    """How much a scope asks for, measured between two tellings.

    Attributes:
        hot: it is worth taking capacity ahead.
        hold_seconds: for how long requests are in progress, on average.
        asked_lately: somebody came since this was last set to false.
    """

    hot: bool = False
    hold_seconds: float = 1.0
    asked_lately: bool = False
    _since: float = 0.0
    _requests: int = 0
    _tokens: int = 0
    _nano_usd: int = 0
    _rates: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def asked(self, requests: int, tokens: int, nano_usd: int) -> None:
        """So many requests came, which needed so much together."""
        self.asked_lately = self.asked_lately or requests > 0
        self._requests += requests
        self._tokens += tokens
        self._nano_usd += nano_usd

    def lasted(self, seconds: float, requests: int = 1) -> None:
        """So many requests were in progress for so long, all together."""
        if requests:
            newer = 1 - 0.9**requests
            self.hold_seconds += newer * (seconds / requests - self.hold_seconds)

    def wish(self, now: float) -> Wish:
        """What would be used within a lease at the present pace, and more: where it runs out, all
        have to ask. How many slots are in use wanders by the root of how many requests come."""
        elapsed = now - self._since
        if elapsed >= LEASE_SECONDS / 2:
            counted = (self._requests, self._tokens, self._nano_usd)
            self._rates = tuple(amount / elapsed for amount in counted)  # type: ignore[assignment]
            self._since, self._requests, self._tokens, self._nano_usd = now, 0, 0, 0
            self.hot = self._rates[0] >= HOT_RATE
        if not self.hot:
            return NO_WISH
        requests, tokens, nano_usd = (int(rate * LEASE_SECONDS * _SPARE) for rate in self._rates)
        return Wish(requests, tokens, 2 * isqrt(requests), nano_usd)


class Pot:
    """One period of a budget.

    Attributes:
        key: in Redis.
        limit, alert: nano-USD, or `NONE`.
        start_ms, end_ms: the period, milliseconds since the epoch.
        spent: by this process since it began, nano-USD.
        held: for requests in progress, nano-USD.
        ahead: taken and not yet needed, nano-USD.
        total_spent, total_held: by all processes, when last heard, nano-USD.
        told: what these have of this process, nano-USD.
    """

    __slots__ = (
        "ahead",
        "alert",
        "budget",
        "end_ms",
        "held",
        "key",
        "limit",
        "span",
        "spent",
        "start_ms",
        "told",
        "total_held",
        "total_spent",
    )

    def __init__(self, scope: Scope, budget: Budget, span: Span, spend: Spend) -> None:
        """Args:
        spend: what this process has charged in the period already.
        """
        start = int(span.starts_at.timestamp())
        self.key = f"sluice:q:b:{scope.level}:{scope.id}:{budget.period}:{start}"
        self.span = span
        self.start_ms = start * 1000
        self.end_ms = int(span.ends_at.timestamp() * 1000)
        self.spent = spend.within(scope.id, self.start_ms, self.end_ms)
        self.held = self.ahead = 0
        self.total_spent = self.total_held = self.told = 0
        self.limited_by(budget)

    def limited_by(self, budget: Budget) -> None:
        """Take over the budget as it is now."""
        self.budget = budget
        limit, alert = budget.limit_nano_usd, budget.alert_nano_usd
        self.limit = NONE if limit is None else limit
        self.alert = NONE if alert is None else alert


@dataclass(slots=True, eq=False)
class Account:
    """This process's side of one scope.

    Attributes:
        key: in Redis.
        scope: with its present limits.
        spend: what this process has charged to anybody.
        rpm, tpm, most: requests and tokens a minute, concurrent requests; or `NONE`.
        pots: of the present periods; replaced as a whole, so that who holds it holds one state.
        old_pots: of past ones that requests in progress still belong to.
        pots_until: when the first of the present periods ends, milliseconds since the epoch.
        slots: requests in progress.
        ahead_requests, ahead_tokens, ahead_slots: taken and not yet needed.
        window: the sub-window of the last telling, which requests it let in are counted in.
        ahead_window, ahead_until: the sub-window that rates were taken ahead from, and until when
            they may be used, seconds on the monotonic clock.
        shifts: by sub-window, requests and tokens to add; below zero to give back.
        limited: anything may be refused; alerts alone refuse nothing.
        leasing: capacity is taken ahead.
        renewing: until more is there, what is left is used, and goes back then.
        remaining_requests, remaining_tokens: of the minute, as far as known.
        in_progress: requests in progress at all processes, when last heard.
        pace: how much is asked for.
        shares: of callers, of what was taken ahead: in `slots` and in what is held, until they are
            recalled.
    """

    key: str
    scope: Scope
    spend: Spend
    rpm: int = NONE
    tpm: int = NONE
    most: int = NONE
    pots: tuple[Pot, ...] = ()
    old_pots: list[Pot] = field(default_factory=list)
    pots_until: float = _FOREVER
    slots: int = 0
    ahead_requests: int = 0
    ahead_tokens: int = 0
    ahead_slots: int = 0
    window: int = 0
    ahead_window: int = 0
    ahead_until: float = 0.0
    shifts: dict[int, list[int]] = field(default_factory=dict)
    limited: bool = False
    leasing: bool = False
    renewing: bool = False
    remaining_requests: int = 0
    remaining_tokens: int = 0
    in_progress: int = 0
    pace: Pace = field(default_factory=Pace)
    shares: list[Share] = field(default_factory=list)

    @classmethod
    def of(cls, scope: Scope, spend: Spend, now_ms: float) -> Account:
        """A scope's account, with nothing in progress."""
        part = "" if scope.part == "all" else f":{scope.part}"
        account = cls(f"sluice:q:s:{scope.level}:{scope.id}{part}", scope, spend)
        account._adopt(scope, now_ms)
        return account

    def follow(self, scope: Scope, now_ms: float) -> bool:
        """Take over the scope's present limits, and the periods of the present time; whether
        anything is new."""
        if now_ms < self.pots_until and (scope is self.scope or scope == self.scope):
            self.scope = scope
            return False
        self.recall()
        self.give_back()
        self._adopt(scope, now_ms)
        return True

    def covers(self, need: Need, now: float) -> bool:
        """Whether what was taken ahead covers a need."""
        if not self.leasing:
            return not self.limited
        if now >= self.ahead_until:
            return False
        if self.rpm >= 0 and self.ahead_requests < 1:
            return False
        if self.tpm >= 0 and self.ahead_tokens < need.tokens:
            return False
        slots = need.slots
        if self.most >= 0 and self.ahead_slots < slots:
            return False
        nano_usd = need.nano_usd
        for pot in self.pots:  # noqa: SIM110 - a generator costs more than the rest of this
            if pot.ahead < nano_usd and pot.limit >= 0:
                return False
        return True

    def take(self, need: Need) -> None:
        """Cover a need by what was taken ahead."""
        tokens, nano_usd, slots = need.tokens, need.nano_usd, need.slots
        if self.rpm >= 0:
            self.ahead_requests -= 1
        if self.tpm >= 0:
            self.ahead_tokens -= tokens
        if self.most >= 0:
            self.ahead_slots -= slots
        self.slots += slots
        for pot in self.pots:
            pot.held += nano_usd
            if pot.limit >= 0:
                pot.ahead -= nano_usd
        self.remaining_requests -= 1
        self.remaining_tokens -= tokens

    def begin(self, need: Need) -> None:
        """A request is in progress."""
        self.slots += need.slots
        for pot in self.pots:
            pot.held += need.nano_usd

    def begin_untold(self, need: Need, window: int) -> None:
        """The same while the sums can't be asked: they hear of it when they are there again, as
        far as it still counts then."""
        self.begin(need)
        if window not in self.shifts:
            self.shifts = {at: both for at, both in self.shifts.items() if at > window - WINDOWS}
        self.shift(window, 1, need.tokens)

    def end(self, need: Need, pots: Iterable[Pot], window: int, tokens: int, nano_usd: int) -> None:
        """A request is over, and used so much.

        Args:
            need: that it was admitted with.
            pots: that it was admitted to.
            window: the sub-window that it was counted in.
        """
        leasing, held, slots = self.leasing, need.nano_usd, need.slots
        self.slots -= slots
        if leasing and self.most >= 0:
            self.ahead_slots += slots
        more = tokens - need.tokens
        if more:
            self.used_more(window, more)
        for pot in pots:
            pot.held -= held
            if leasing and pot.limit >= 0:
                ahead = pot.ahead + held - nano_usd
                pot.ahead = ahead if ahead > 0 else 0

    def used_more(self, window: int, tokens: int) -> None:
        """So many more tokens were used than admitted in a sub-window; below zero, fewer."""
        self.remaining_tokens -= tokens
        self.shift(window, 0, tokens)

    def set_aside(self, share: Share, pots: Iterable[Pot], amounts: Amounts) -> None:
        """A share is opened, with so much of what was taken ahead."""
        requests, tokens, slots, nano_usd = amounts
        self.shares.append(share)
        self._ahead(-requests, -tokens, -slots)
        self.slots += slots
        for pot in pots:
            pot.held += nano_usd
            if pot.limit >= 0:
                pot.ahead -= nano_usd

    def take_over(
        self, share: Share, pots: Iterable[Pot], left: Amounts, used: tuple[int, int], spent: int
    ) -> None:
        """A share is closed.

        Args:
            pots: that it had been opened with.
            left: of what was set aside for it, with what came back to it.
            used: the requests that were let in by it, and their tokens.
            spent: of what it held, nano-USD.
        """
        requests, tokens, slots, nano_usd = left
        self.shares.remove(share)
        self._ahead(requests, tokens, slots)
        self.slots -= slots
        self.remaining_requests -= used[0]
        self.remaining_tokens -= used[1]
        for pot in pots:
            pot.held -= nano_usd + spent
            if pot.limit >= 0:
                pot.ahead = max(0, pot.ahead + nano_usd)
        if not self.leasing:
            self.give_back()

    def recall(self) -> None:
        """Close the shares of this account."""
        while self.shares:
            self.shares[-1].close()

    def _ahead(self, requests: int, tokens: int, slots: int) -> None:
        """More is there to be used, of what is limited; below zero, less."""
        if self.rpm >= 0:
            self.ahead_requests += requests
        if self.tpm >= 0:
            self.ahead_tokens += tokens
        if self.most >= 0:
            self.ahead_slots += slots

    def charge(self, time_ms: int, nano_usd: int) -> None:
        """A request that came at a time, milliseconds since the epoch, was charged."""
        for pot in self.pots:
            if pot.start_ms <= time_ms < pot.end_ms:
                pot.spent += nano_usd
        for pot in self.old_pots:
            if pot.start_ms <= time_ms < pot.end_ms:
                pot.spent += nano_usd

    def shift(self, window: int, requests: int, tokens: int) -> None:
        """Requests and tokens to add to a sub-window when positions are told next."""
        both = self.shifts.get(window)
        if both is None:
            self.shifts[window] = [requests, tokens]
        else:
            both[0] += requests
            both[1] += tokens

    def give_back(self) -> None:
        """Return what was taken ahead when positions are told next."""
        if self.ahead_requests or self.ahead_tokens:
            self.shift(self.ahead_window, -self.ahead_requests, -self.ahead_tokens)
            self.ahead_requests = self.ahead_tokens = 0
        self.ahead_slots = 0
        for pot in self.all_pots:
            pot.ahead = 0
        self.leasing = False

    def message(self, now: float, may_lease: bool, keeps: bool) -> list[Any]:
        """The positions as the script takes them.

        Args:
            may_lease: capacity may be taken ahead.
            keeps: what was taken ahead may be used on. It goes back when what is ample now has
                been taken anew, so that no more is ever kept from others than a part of what is
                left; and otherwise at once.
        """
        wish = self.pace.wish(now) if may_lease else NO_WISH
        kept = keeps and self.leasing and wish.requests > 0 and now < self.ahead_until
        self.renewing = kept and now >= self.ahead_until - LEASE_SECONDS / 2
        if not kept:
            leasing = self.leasing
            self.give_back()
            self.leasing = leasing  # what ends meanwhile comes back to what is taken ahead
        elif not self.renewing:
            wish = NO_WISH
        shifts = [
            number
            for window, (requests, tokens) in self.shifts.items()
            for number in (window, requests, tokens)
        ]
        self.shifts = {}
        budgets = [
            (
                pot.key,
                pot.limit,
                pot.alert,
                pot.spent,
                pot.held + pot.ahead,
                wish.nano_usd,
                pot.start_ms,
                pot.end_ms,
            )
            for pot in self.all_pots
        ]
        self.old_pots = [pot for pot in self.old_pots if pot.held]
        ahead, slots = (wish.requests, wish.tokens, wish.slots), self.slots + self.ahead_slots
        return [self.key, self.rpm, self.tpm, self.most, slots, shifts, ahead, budgets]

    def heard(self, told: list[Any], pots: list[Pot], asked_at: float) -> list[Pot]:
        """The sums of all processes, as the script gives them; the budgets whose alert was
        crossed just now.

        Args:
            asked_at: when they were asked for, on the monotonic clock: a late reply does not make
                what was taken ahead last longer.
        """
        self.recall()
        requests, tokens, self.in_progress, more, more_tokens, slots, self.window, budgets = told
        self.remaining_requests = max(0, self.rpm - requests + self.ahead_requests + more)
        self.remaining_tokens = max(0, self.tpm - tokens + self.ahead_tokens + more_tokens)
        if self.renewing:
            self.give_back()
        self.ahead_slots += slots
        self.ahead_requests += more
        self.ahead_tokens += more_tokens
        if more or more_tokens or slots or any(ahead for _, _, ahead, _ in budgets):
            self.ahead_window, self.ahead_until = self.window, asked_at + LEASE_SECONDS
        crossed = []
        for pot, (spent, held, ahead, alert) in zip(pots, budgets, strict=True):
            pot.total_spent, pot.total_held = spent, held
            pot.ahead += ahead
            if alert:
                crossed.append(pot)
        self.leasing = (
            self.limited
            and (self.rpm < 0 or self.ahead_requests > 0)
            and (self.tpm < 0 or self.ahead_tokens > 0)
            and (self.most < 0 or self.ahead_slots > 0)
            and all(pot.limit < 0 or pot.ahead > 0 for pot in self.pots)
        )
        return crossed

    @property
    def has_ahead(self) -> bool:
        """Whether anything is taken and not yet needed."""
        return bool(
            self.ahead_requests
            or self.ahead_tokens
            or self.ahead_slots
            or any(pot.ahead for pot in self.pots)
        )

    def not_told(self, pots: list[Pot]) -> None:
        """What was said did not arrive, or it is not known whether it did.

        What was to be given back is kept: at worst it is counted until its minute is over.
        """
        known = self.all_pots
        self.old_pots += [pot for pot in pots if pot not in known]

    @property
    def all_pots(self) -> list[Pot]:
        """In the order in which messages have them."""
        return [*self.pots, *self.old_pots]

    def _adopt(self, scope: Scope, now_ms: float) -> None:
        limits = scope.limits
        self.scope = scope
        self.rpm = NONE if limits.requests_per_minute is None else limits.requests_per_minute
        self.tpm = NONE if limits.tokens_per_minute is None else limits.tokens_per_minute
        self.most = NONE if limits.max_concurrent is None else limits.max_concurrent
        kept = []
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        for budget in limits.budgets:
            span = span_of(budget.period, scope.time_zone, at)
            made = Pot(scope, budget, span, self.spend)
            pot = next((pot for pot in self.all_pots if pot.key == made.key), made)
            pot.limited_by(budget)
            kept.append(pot)
        self.old_pots = [pot for pot in self.all_pots if pot not in kept]
        self.pots = tuple(kept)
        self.limited = max(self.rpm, self.tpm, self.most) >= 0 or any(
            pot.limit >= 0 for pot in kept
        )
        self.pots_until = min((pot.end_ms for pot in kept), default=_FOREVER)
