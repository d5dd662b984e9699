"""Where a caller stands: what is left of its limits now, over all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluice.gateway.quotas.accounts import Account, Pot
from sluice.gateway.quotas.admission import Admission
from sluice.gateway.quotas.counters import Counters, CountersAway
from sluice.gateway.tenancy.limits import Level, Period, Policy

ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What has become of a budget in the period that runs.

    Attributes:
        reserved_nano_usd: for requests in progress.
        starts_at, ends_at: of the period, UTC.
        alerted: the alert's amount is reached.
    """

    period: Period
    spent_nano_usd: int
    reserved_nano_usd: int
    starts_at: datetime
    ends_at: datetime
    alerted: bool


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What has become of a level's limits now; None: there is no such limit.

    Attributes:
        id: of the organisation, team or key.
        in_progress: requests that hold a slot.
    """

    level: Level
    id: str
    requests_remaining: int | None = None
    tokens_remaining: int | None = None
    in_progress: int | None = None
    budgets: Sequence[BudgetState] = ()


class Standing:
    """Tells callers where they stand."""

    def __init__(self, admission: Admission, counters: Counters) -> None:
        self._admission = admission
        self._counters = counters

    async def of(self, policy: Policy) -> list[ScopeState]:
        """The state of each level that has limits; nothing while the sums can't be asked."""
        accounts = self._admission.standing(policy)
        self._counters.tell(accounts, at_once=False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._counters.flush()
        except (CountersAway, TimeoutError):
            return []
        return _together([_state(account) for account in accounts])


def _together(states: Sequence[ScopeState]) -> list[ScopeState]:
    """One state for each level: one that counts batch requests by themselves has its budgets in
    an account of their own."""
    levels: dict[Level, ScopeState] = {}
    for state in states:
        known = levels.get(state.level)
        levels[state.level] = state if known is None else replace(known, budgets=state.budgets)
    return list(levels.values())


def _state(account: Account) -> ScopeState:
    return ScopeState(
        account.scope.level,
        account.scope.id,
        account.remaining_requests if account.rpm >= 0 else None,
        account.remaining_tokens if account.tpm >= 0 else None,
        account.in_progress if account.most >= 0 else None,
        [_budget(pot) for pot in account.pots],
    )


def _budget(pot: Pot) -> BudgetState:
    return BudgetState(
        pot.budget.period,
        pot.total_spent,
        max(0, pot.total_held - pot.ahead),
        pot.span.starts_at,
        pot.span.ends_at,
        0 <= pot.alert <= pot.total_spent,
    )
