"""A caller's share of what its accounts have taken ahead.

To look at every limit of every level for each request, at its begin and at its end, costs a hot
caller more than anything else that limits ask of it. So its accounts set a part aside, which the
caller's requests are let in by, and which they come back to: a few numbers instead of a dozen. The
accounts hear the sums when the share is closed, which is before anybody is told where they stand
(see `Counters`), and every tenth of a second. To the accounts all of a share is in progress or
held, so that several callers of one team or organisation never use the same twice.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.gateway.quotas.accounts import Account, Amounts, Pot
from sluice.gateway.quotas.headers import Left, left_of
from sluice.gateway.quotas.needs import Need
from sluice.gateway.quotas.spend import QUARTER_MS

#: What is not limited is not short.
_PLENTY = 1 << 60

#: A share of fewer requests of the present kind is not worth its making.
_LEAST_REQUESTS = 8


class Share:
    """See the module. Times are seconds on the monotonic clock.

    Attributes:
        pots: of each account, when it was opened.
        windows: the sub-windows that the accounts' capacity was taken from.
    """

    __slots__ = (
        "_accounts",
        "_asked_nano_usd",
        "_closed",
        "_ended",
        "_left",
        "_limits",
        "_more",
        "_nano_usd",
        "_opened",
        "_quarter",
        "_requests",
        "_seconds",
        "_slots",
        "_spent",
        "_tokens",
        "_until",
        "pots",
        "windows",
    )

    def __init__(
        self,
        accounts: tuple[Account, ...],
        pots: tuple[tuple[Pot, ...], ...],
        chunk: Amounts,
        quarter: int,
        until: float,
        closed: Callable[[int, int], None],
    ) -> None:
        """See `opened`."""
        requests, tokens = left_of(accounts)
        self._left = [0 if each is None else each[0] for each in (requests, tokens)]
        self._limits = [None if each is None else each[1] for each in (requests, tokens)]
        self._accounts = accounts
        self.pots = pots
        self.windows = tuple([account.ahead_window for account in accounts])
        self._opened = chunk
        self._requests, self._tokens, self._slots, self._nano_usd = chunk
        self._quarter = quarter
        self._until = until
        self._closed = closed
        self._asked_nano_usd = self._ended = self._spent = 0
        self._seconds = 0.0
        self._more: dict[tuple[int, ...], int] = {}

    @classmethod
    def opened(
        cls,
        accounts: tuple[Account, ...],
        pots: tuple[tuple[Pot, ...], ...],
        need: Need,
        now_ms: float,
        until: float,
        closed: Callable[[int, int], None],
    ) -> Share | None:
        """Set aside three quarters of what the accounts have; None where that is not much.

        Args:
            accounts: of one caller, all of which cover the need by what they have taken ahead.
            pots: the accounts' present ones.
            need: the present request's.
            now_ms: Redis's time, milliseconds since the epoch.
            until: it is not used after this time, nor after the present quarter of an hour.
            closed: is called with the quarter of an hour and what was spent within, nano-USD,
                once the share is closed.
        """
        requests = min([each.ahead_requests for each in accounts if each.rpm >= 0], default=_PLENTY)
        tokens = min([each.ahead_tokens for each in accounts if each.tpm >= 0], default=_PLENTY)
        slots = min([each.ahead_slots for each in accounts if each.most >= 0], default=_PLENTY)
        limited = [pot.ahead for own in pots for pot in own if pot.limit >= 0]
        nano_usd = min(limited, default=_PLENTY)
        requests, tokens = requests * 3 // 4, tokens * 3 // 4
        slots, nano_usd = slots * 3 // 4, nano_usd * 3 // 4
        if requests < _LEAST_REQUESTS or slots < 1:
            return None
        if tokens < _LEAST_REQUESTS * need.tokens or nano_usd < _LEAST_REQUESTS * need.nano_usd:
            return None
        chunk = (requests, tokens, slots, nano_usd)
        quarter = int(now_ms) // QUARTER_MS
        share = cls(accounts, pots, chunk, quarter, until, closed)
        for account, own in zip(accounts, pots, strict=True):
            account.set_aside(share, own, chunk)
        return share

    @property
    def left(self) -> Left:
        """What is left of the caller's limits on requests, and of those on tokens."""
        (requests, tokens), (most, most_tokens) = self._left, self._limits
        return (
            None if most is None else (requests if requests > 0 else 0, most),
            None if most_tokens is None else (tokens if tokens > 0 else 0, most_tokens),
        )

    def take(self, need: Need, now: float) -> bool:
        """Let a request in, if there is enough for it."""
        tokens, nano_usd, slots = need.tokens, need.nano_usd, need.slots
        if (
            now >= self._until
            or self._requests < 1
            or self._slots < slots
            or self._tokens < tokens
            or self._nano_usd < nano_usd
        ):
            return False
        self._requests -= 1
        self._slots -= slots
        self._tokens -= tokens
        self._nano_usd -= nano_usd
        self._asked_nano_usd += nano_usd
        left = self._left
        left[0] -= 1
        left[1] -= tokens
        return True

    def settle(
        self,
        need: Need,
        windows: tuple[int, ...],
        tokens: int,
        nano_usd: int,
        time_ms: int,
        seconds: float,
    ) -> bool:
        """A request of the caller is over, and used so much; False, and nothing has happened, if it
        has to be settled with the accounts themselves.

        Args:
            need: that it was admitted with.
            windows: that it was counted in.
            time_ms: when it came, milliseconds since the epoch.
            seconds: for which it was in progress.
        """
        if nano_usd and time_ms // QUARTER_MS != self._quarter:
            return False
        self._slots += need.slots
        self._ended += 1
        self._seconds += seconds
        self._nano_usd += need.nano_usd - nano_usd
        self._spent += nano_usd
        more = tokens - need.tokens
        if more:
            self._more[windows] = self._more.get(windows, 0) + more
            self._left[1] -= more
        return True

    def close(self) -> None:
        """Bring the sums to the accounts, and what is left."""
        requests, tokens, _, _ = self._opened
        asked = (requests - self._requests, tokens - self._tokens, self._asked_nano_usd)
        left = (self._requests, self._tokens, self._slots, self._nano_usd)
        for number, account in enumerate(self._accounts):
            account.pace.asked(*asked)
            account.pace.lasted(self._seconds, self._ended)
            for windows, more in self._more.items():
                account.used_more(windows[number], more)
            account.take_over(self, self.pots[number], left, asked[:2], self._spent)
        self._closed(self._quarter, self._spent)
