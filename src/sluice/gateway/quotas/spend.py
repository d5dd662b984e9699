"""Spend: what this process has charged to whom, by quarters of an hour, as the ledger has it.

A budget that is set counts what was spent in its period before, so that a process has to know it
of every organisation, team and key, those without budgets too.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.gateway.tenancy.limits import Scope

QUARTER_MS = 15 * 60 * 1000

#: Longer than any period.
_KEPT_MS = 40 * 24 * 3600 * 1000


class Spend:
    """This process's, since it began."""

    def __init__(self) -> None:
        self._by_scope: dict[str, dict[int, int]] = {}

    def add(self, scopes: Iterable[Scope], time_ms: int, nano_usd: int) -> None:
        """A request that came at a time (milliseconds since the epoch) was charged."""
        quarter = time_ms // QUARTER_MS
        for scope in scopes:
            quarters = self._by_scope.get(scope.id)
            if quarters is None:
                quarters = self._by_scope[scope.id] = {}
            if quarter in quarters:
                quarters[quarter] += nano_usd
            else:
                quarters[quarter] = nano_usd
                self._forget(quarters, quarter)

    def within(self, owner: str, start_ms: int, end_ms: int) -> int:
        """What was charged to an organisation, team or key in a period, nano-USD."""
        first, last = start_ms // QUARTER_MS, end_ms // QUARTER_MS
        quarters = self._by_scope.get(owner, {})
        return sum(nano for quarter, nano in quarters.items() if first <= quarter < last)

    def _forget(self, quarters: dict[int, int], now: int) -> None:
        for quarter in [each for each in quarters if each < now - _KEPT_MS // QUARTER_MS]:
            del quarters[quarter]
