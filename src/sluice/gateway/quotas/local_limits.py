"""Limits of this process alone, for the time that the global sums can't be asked.

Each process allows its share: the limit divided by the number of processes that were alive when
last heard. Of a budget it allows its share of what was left of it when last heard.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sluice.gateway.quotas.accounts import Account
from sluice.gateway.quotas.counters import Refused
from sluice.gateway.quotas.needs import Need

_MINUTE = 60.0


@dataclass(slots=True)
class _Window:
    """What was let in within the last minute: moments, tokens, and their sum."""

    entries: deque[tuple[float, int]] = field(default_factory=deque)
    tokens: int = 0

    def advance(self, now: float) -> None:
        while self.entries and self.entries[0][0] <= now - _MINUTE:
            self.tokens -= self.entries.popleft()[1]


class LocalLimits:
    """See the module."""

    def __init__(
        self, processes: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        processes: gives the number of processes that share the limits.
        """
        self._processes = processes
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def judge(self, accounts: Iterable[Account], need: Need) -> Refused | None:
        """Whether a request may be let in; the first limit that does not allow it.

        A request that may is counted against the rates; slots and money are the accounts' own.
        """
        now, share = self._clock(), max(1, self._processes())
        windows = []
        for account in accounts:
            window = self._windows.setdefault(account.key, _Window())
            window.advance(now)
            refused = _refused(account, window, need, share, now)
            if refused is not None:
                return refused
            windows.append(window)
        for window in windows:
            window.entries.append((now, need.tokens))
            window.tokens += need.tokens
        return None


def _refused(
    account: Account, window: _Window, need: Need, share: int, now: float
) -> Refused | None:
    if need.slots and (refused := _held_up(account, need, share)) is not None:
        return refused
    if account.rpm >= 0 and (len(window.entries) + 1) * share > account.rpm:
        return Refused(account, "requests", _until(window, now))
    too_many = need.slots and (window.tokens + need.tokens) * share > account.tpm
    if account.tpm >= 0 and too_many:
        return Refused(account, "tokens", _until(window, now))
    return None


def _held_up(account: Account, need: Need, share: int) -> Refused | None:
    for pot in account.pots:
        if pot.limit >= 0:
            left = (pot.limit - pot.total_spent - pot.total_held) // share
            if pot.spent + pot.held - pot.told + need.nano_usd > left:
                return Refused(account, "budget", None, pot)
    # one at least, wherever the limit is not nothing
    if 0 <= account.most < (account.slots + 1) * share and (account.slots or not account.most):
        return Refused(account, "concurrency")
    return None


def _until(window: _Window, now: float) -> float:
    """Until the oldest entry has left the window."""
    return _MINUTE - (now - window.entries[0][0]) if window.entries else _MINUTE
