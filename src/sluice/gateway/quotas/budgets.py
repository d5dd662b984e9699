"""Budgets: the ledger's truth about what was spent, brought to the counters.

The counters know what the living have spent since they began. What was spent before Redis knew of
a period, or by a process that died before it could tell, is in the ledger. It is brought over
before a period begins, when a budget is set, when Redis has lost its data, and after a death.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

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
from sluice.gateway.quotas.spend import Spend
from sluice.gateway.tenancy.limits import Scope

#: How often it is looked for what has to be brought over, in seconds.
LOOK_SECONDS = 0.25

#: Periods that begin so soon are made ready, so that nobody waits for the database then.
AHEAD = timedelta(minutes=30)

#: How often it is looked whether the ledger knows more, in seconds: of a process that died with
#: usage events on its disk, when another has replayed them.
AGAIN = timedelta(seconds=60)

#: Sums of a period are kept for so long after its end.
KEPT = timedelta(days=2)

ANSWER_SECONDS = 2.0

#: So many budgets are brought over at once.
_BATCH = 500

_log = structlog.get_logger("sluice.quotas")

#: What a budget was before anybody has charged anything: only its key and its period matter here.
_NOTHING = Spend()


class Budgeted(Protocol):
    """Who has budgets."""

    revision: int

    def budgeted(self) -> list[Scope]:
        """Every scope that has budgets; a change of any raises the revision."""
        ...


class Budgets:
    """Keeps the counters' budgets true."""

    def __init__(
        self,
        link: RedisLink,
        pool: asyncpg.Pool,
        budgeted: Budgeted,
        tell: Callable[[Scope], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        link: kept connected by somebody else.
        pool: the ledger's database.
        budgeted: who has budgets.
        tell: makes this process tell its own part of a scope's budgets.
        """
        self._link = link
        self._pool = pool
        self._budgeted = budgeted
        self._tell = tell
        self._now = now
        self._script = Script("reconcile.lua")
        self._ready: set[str] = set()
        self._looked_at: int | None = None
        self._look_again = now()
        self._doubts: dict[bytes, int] = {}
        self._seeding: dict[str, asyncio.Future[None]] = {}
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
        """Make a budget's sum known to the counters at once, for however many wait for it; where
        the ledger can't be read now, it stays unknown."""
        under_way = self._seeding.get(pot.key)
        if under_way is None:
            under_way = asyncio.ensure_future(self._seed(scope, pot))
            self._seeding[pot.key] = under_way
            under_way.add_done_callback(lambda _: self._seeding.pop(pot.key))
        await asyncio.shield(under_way)

    async def _seed(self, scope: Scope, pot: Pot) -> None:
        self._ready.discard(pot.key)
        try:
            await self._bring([(scope, pot)])
        except (RedisError, TimeoutError, *DATABASE_ERRORS) as error:
            _log.warning("budget can't be judged", budget=pot.key, error=type(error).__name__)

    def forget(self) -> None:
        """Redis may have lost what it knew."""
        self._ready.clear()
        self._looked_at = None

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
        """Where somebody's budgets changed, and every minute for all of them."""
        revision, now = self._budgeted.revision, self._now()
        if revision == self._looked_at and now < self._look_again:
            return
        wanted: dict[str, tuple[Scope, Pot]] = {}
        for number, scope in enumerate(self._budgeted.budgeted()):
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            for budget in scope.limits.budgets:
                for at in (now, now + AHEAD):
                    span = span_of(budget.period, scope.time_zone, at)
                    pot = Pot(scope, budget, span, _NOTHING)
                    wanted[pot.key] = (scope, pot)
        again = now >= self._look_again
        new = [each for key, each in wanted.items() if again or key not in self._ready]
        for first in range(0, len(new), _BATCH):
            await self._bring(new[first : first + _BATCH])
        self._ready = set(wanted)
        self._looked_at = revision
        self._look_again = now + AGAIN

    async def _bring(self, budgets: Sequence[tuple[Scope, Pot]], gone: Sequence[str] = ()) -> None:
        """Raise the counters of budgets to what the ledger has, and tell this process's own."""
        together: dict[tuple[Any, ...], list[tuple[Scope, Pot]]] = defaultdict(list)
        for scope, pot in budgets:
            together[(scope.level, pot.span)].append((scope, pot))
        for (level, span), some in together.items():
            spent: dict[str, dict[str, int]] = {}
            if span.starts_at <= self._now():
                owners = [scope.id for scope, _ in some]
                spent = await spent_by_gateway(
                    self._pool, level, owners, span.starts_at, span.ends_at
                )
            for scope, pot in some:
                if scope.id in spent or gone or pot.key not in self._ready:
                    await self._raise(pot, spent.get(scope.id, {}), gone)
        for scope, pot in budgets:
            if pot.span.starts_at <= self._now() < pot.span.ends_at:
                self._tell(scope)

    async def _raise(self, pot: Pot, spent: dict[str, int], gone: Sequence[str]) -> None:
        useless = int((pot.span.ends_at + KEPT).timestamp() * 1000)
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
        known = self._present_pots()
        for doubt, since in self._doubts.items():
            if stored_until < since + 1000:
                continue
            key, _, gone = doubt.decode().rpartition("|")
            if key in known:
                await self._bring([known[key]], [gone])
                _log.info("what a lost gateway had spent is known", budget=key, gateway=gone)
            else:  # of a period that is over, or a budget that is no more
                await self._ask("SREM", "sluice:q:doubt", doubt)

    def _present_pots(self) -> dict[str, tuple[Scope, Pot]]:
        now = self._now()
        pots = [
            (scope, Pot(scope, budget, span_of(budget.period, scope.time_zone, now), _NOTHING))
            for scope in self._budgeted.budgeted()
            for budget in scope.limits.budgets
        ]
        return {pot.key: (scope, pot) for scope, pot in pots}

    async def _ask(self, *command: bytes | str) -> Any:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._link.send(*command)
