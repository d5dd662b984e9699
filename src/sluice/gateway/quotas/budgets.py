"""Budgets: the ledger's truth about what was spent, brought to the counters.

The counters know what the living have spent since they began. What was spent before Redis knew of
a period, or by a process that died before it could tell, is in the ledger. It is brought over
before a period begins, when a budget is set, when Redis has lost its data, and after a death.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import structlog
from redis.exceptions import RedisError

from sluice.billing.events import STREAM
from sluice.billing.ledger import DATABASE_ERRORS
from sluice.billing.redis_link import RedisLink
from sluice.billing.reports import spent_by_gateway
from sluice.gateway.quotas.accounts import Pot
from sluice.gateway.quotas.counters import Script
from sluice.gateway.quotas.periods import span_of
from sluice.gateway.tenancy.limits import Level, Scope

#: How often it is looked for what has to be brought over, in seconds.
LOOK_SECONDS = 1.0

#: Periods that begin so soon are made ready, so that nobody waits for the database then.
AHEAD = timedelta(minutes=30)

#: Sums of a period are kept for so long after its end.
KEPT = timedelta(days=2)

ANSWER_SECONDS = 2.0

_log = structlog.get_logger("sluice.quotas")


class Budgets:
    """Keeps the counters' budgets true."""

    def __init__(
        self,
        link: RedisLink,
        pool: asyncpg.Pool,
        scopes: Callable[[], Iterable[Scope]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        link: kept connected by somebody else.
        pool: the ledger's database.
        scopes: gives every scope that has budgets.
        """
        self._link = link
        self._pool = pool
        self._scopes = scopes
        self._now = now
        self._script = Script("reconcile.lua")
        self._ready: dict[str, datetime] = {}
        self._doubts: dict[bytes, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bring over what is needed now, as far as it can be reached, then go on."""
        await self._look()
        self._task = asyncio.create_task(self._run(), name="budgets")

    async def stop(self) -> None:
        """End the work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def seed(self, scope: Scope, pot: Pot) -> None:
        """Make a budget's sum known to the counters at once; where the ledger can't be read now,
        it stays unknown."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._bring(scope.level, scope.id, pot)
        except (RedisError, TimeoutError, *DATABASE_ERRORS) as error:
            _log.warning("budget can't be judged", budget=pot.key, error=type(error).__name__)

    def forget(self) -> None:
        """Redis may have lost what it knew."""
        self._ready.clear()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        if not self._link.up:
            return
        try:
            await self._make_ready()
            await self._settle_doubts()
        except (RedisError, TimeoutError, *DATABASE_ERRORS) as error:
            _log.warning("budgets can't be brought over", error=type(error).__name__)

    async def _make_ready(self) -> None:
        now = self._now()
        self._ready = {key: until for key, until in self._ready.items() if until > now}
        for scope in list(self._scopes()):
            for budget in scope.limits.budgets:
                for at in (now, now + AHEAD):
                    pot = Pot(scope, budget, span_of(budget.period, scope.time_zone, at))
                    if pot.key in self._ready:
                        continue
                    if not await self._ask("HEXISTS", pot.key, "seeded"):
                        await self._bring(scope.level, scope.id, pot)
                    self._ready[pot.key] = pot.span.ends_at

    async def _bring(self, level: Level, owner: str, pot: Pot, gone: Iterable[str] = ()) -> None:
        """Raise the counters of a budget to what the ledger has."""
        spent: dict[str, int] = {}
        if pot.span.starts_at <= self._now():
            spent = await spent_by_gateway(
                self._pool, level, owner, pot.span.starts_at, pot.span.ends_at
            )
        useless = int((pot.span.ends_at + KEPT).timestamp() * 1000)
        gone = list(gone)
        pairs = [text for gateway, nano in spent.items() for text in (gateway, str(nano))]
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._script.run(self._link, pot.key, str(useless), str(len(gone)), *gone, *pairs)

    async def _settle_doubts(self) -> None:
        """What processes that died had spent is known once the ledger has all their events."""
        doubts = await self._ask("SMEMBERS", "sluice:q:doubt")
        if not doubts:
            return
        now_ms = int(self._now().timestamp() * 1000)
        oldest = await self._ask("XRANGE", STREAM, "-", "+", "COUNT", "1")
        stored_until = int(oldest[0][0].split(b"-")[0]) if oldest else now_ms
        self._doubts = {doubt: self._doubts.get(doubt, now_ms) for doubt in doubts}
        known = {
            Pot(scope, budget, span_of(budget.period, scope.time_zone, self._now())).key: (
                scope,
                budget,
            )
            for scope in self._scopes()
            for budget in scope.limits.budgets
        }
        for doubt, since in self._doubts.items():
            if stored_until < since + 1000:
                continue
            key, _, gone = doubt.decode().rpartition("|")
            if key not in known:  # of a period that is over, or a budget that is no more
                await self._ask("SREM", "sluice:q:doubt", doubt)
                continue
            scope, budget = known[key]
            pot = Pot(scope, budget, span_of(budget.period, scope.time_zone, self._now()))
            await self._bring(scope.level, scope.id, pot, [gone])
            _log.info("what a lost gateway had spent is known", budget=key, gateway=gone)

    async def _ask(self, *command: bytes | str) -> Any:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._link.send(*command)
