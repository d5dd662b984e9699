"""Where the parts of quotas are joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from sluice.billing.redis_link import RedisLink
from sluice.gateway.quotas.admission import Admission
from sluice.gateway.quotas.budgets import Budgeted, Budgets
from sluice.gateway.quotas.counters import Counters, CountersObserver
from sluice.gateway.quotas.local_limits import LocalLimits
from sluice.gateway.quotas.presence import Presence
from sluice.gateway.quotas.standing import Standing
from sluice.gateway.settings import AdmissionSettings
from sluice.gateway.tenancy.limits import Scope


@dataclass(slots=True)
class Quotas:
    """What keeps limits, and what starts and stops with it."""

    admission: Admission
    presence: Presence
    budgets: Budgets
    standing: Standing

    async def start(self) -> None:
        """Join the other processes. Redis must be connected, if it is there."""
        await self.presence.start()
        await self.budgets.start()
        await self.admission.start()

    async def stop(self) -> None:
        """Tell where things stand, and leave."""
        await self.budgets.stop()
        await self.admission.stop()
        await self.presence.stop()


def create_quotas(
    given: AdmissionSettings,
    gateway_id: str,
    pool: asyncpg.Pool,
    link: RedisLink,
    budgeted: Budgeted,
    observer: CountersObserver,
    counted: Callable[[float], None],
) -> Quotas:
    """What keeps limits; nothing runs until `start`."""
    counters = Counters(link, gateway_id, observer, leases=given.mode == "leased")

    def tell(scope: Scope) -> None:
        admission.tell(scope)

    def now() -> datetime:
        return datetime.fromtimestamp(counters.now_ms() / 1000, UTC)

    budgets = Budgets(link, pool, budgeted, tell, now)

    def told_nothing() -> None:
        budgets.forget()
        admission.retell()

    presence = Presence(
        link,
        gateway_id,
        heard_time=counters.set_time,
        unknown_here=told_nothing,
        counted=counted,
        lease_seconds=given.lease_seconds,
    )
    local = LocalLimits(lambda: presence.processes)
    admission = Admission(counters, budgets.seed, local, given.redis_away)
    return Quotas(admission, presence, budgets, Standing(admission, counters))
