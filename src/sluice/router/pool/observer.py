"""Who is told what a pool does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from sluice.router.pool.kv_events import EventKind
from sluice.router.pool.membership import Event, State
from sluice.router.pool.placement import Decision
from sluice.router.pool.queue_request import Priority, Tier
from sluice.router.pool.snapshot import PoolSnapshot

#: How a replica failed a request: no connection; the connection broke; its own queue is full; it
#: answered with a fault; it was ejected meanwhile.
MoveReason = Literal["unreachable", "lost", "refused", "failed", "ejected"]


class PoolObserver(Protocol):
    """Is told what a pool does, for metrics and logs."""

    def request_placed(
        self, pool: str, tier: Tier, priority: Priority, queued: float, decision: Decision
    ) -> None:
        """A request goes to a replica after so many seconds in the queue."""
        ...

    def request_shed(self, pool: str, tier: Tier, priority: Priority, reason: str) -> None:
        """A request was refused."""
        ...

    def request_moved(self, pool: str, reason: MoveReason) -> None:
        """A replica failed a request, which goes elsewhere if it can."""
        ...

    def request_yielded(self, pool: str) -> None:
        """A request was taken back from its replica, for others."""
        ...

    def replica_changed(
        self, pool: str, replica: str, old: State, new: State, cause: Event | None
    ) -> None:
        """A replica's standing changed."""
        ...

    def replica_left(self, pool: str, replica: str) -> None:
        """A replica is no longer known."""
        ...

    def pool_seen(self, pool: str, snapshot: PoolSnapshot) -> None:
        """How the pool is, now and then."""
        ...

    def kv_events_applied(self, pool: str, counts: Mapping[EventKind, int]) -> None:
        """An engine said so many blocks were stored and removed, and how often all were."""
        ...

    def kv_events_missed(self, pool: str, healed: bool) -> None:
        """Messages of an engine were missed; `healed`, where it sent all of them again."""
        ...
