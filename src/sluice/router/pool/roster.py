"""The replicas of a pool as one gateway knows them: their standing, and what follows from it.

`membership` says what an event makes of one replica's standing. Here the standing becomes a share
of the load, and one rule looks at all replicas together: those that are merely slow or that fail
are not ejected once half of the pool is out, since what makes all of them slow is the load, and
taking replicas out would bury the rest. A replica that cannot be reached is always out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.backends.base import Backend
from sluice.backends.replicas import Announcement
from sluice.backends.vllm import VLLMInspector
from sluice.router.pool.bounds import ReplicaLimits
from sluice.router.pool.engine_metrics import EngineReadings
from sluice.router.pool.membership import Event, HealthPolicy, Member, joined, step, weight
from sluice.router.pool.scheduler import PoolScheduler

#: Events that come from load as well as from faults.
_SOFT = frozenset(
    {Event.PROBE_SLOW, Event.PROBE_FAILED, Event.REQUEST_FAILED, Event.REQUEST_STALLED}
)

#: Events after which the engine's cache is gone.
_FATAL = frozenset({Event.UNREACHABLE})


@dataclass(slots=True)
class Replica:
    """One replica.

    Attributes:
        id: its name in the pool.
        url: where it is.
        shown_name: what callers hear of it; None: nothing.
        backend: sends it requests.
        inspector: asks it how it is.
        member: its standing.
        heard: when it last showed that it moves, seconds.
        readings: its own metrics, once they were read.
        announcement: what its worker says, if it has one.
        probed: when it last was asked for a token, seconds.
        scraped: when its metrics were last read, seconds.
    """

    id: str
    url: str
    shown_name: str | None
    backend: Backend
    inspector: VLLMInspector
    member: Member
    heard: float
    readings: EngineReadings | None = None
    announcement: Announcement | None = None
    probed: float = float("-inf")
    scraped: float = float("-inf")

    async def close(self) -> None:
        """Release connections."""
        with contextlib.suppress(OSError):
            await self.backend.close()
            await self.inspector.close()


def static_name(url: str) -> str:
    """The name of a replica that has no worker: its host and port."""
    return url.rstrip("/").removesuffix("/v1").split("://", 1)[-1]


Changed = Callable[[Replica, Member], None]


@dataclass(slots=True)
class Roster:
    """See the module.

    Attributes:
        scheduler: whose replicas these are.
        policy: when a replica is taken out.
        limits: what a replica can hold.
        changed: is told of a replica whose state changed, and its standing before.
    """

    scheduler: PoolScheduler
    policy: HealthPolicy
    limits: Callable[[Replica], ReplicaLimits]
    changed: Changed
    _replicas: dict[str, Replica] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Replica]:
        """All of them, in the order in which they came."""
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._replicas)

    def __contains__(self, replica_id: str) -> bool:
        """Whether a replica is known."""
        return replica_id in self._replicas

    def __getitem__(self, replica_id: str) -> Replica:
        """A replica by its name.

        Raises:
            KeyError: there is none.
        """
        return self._replicas[replica_id]

    def get(self, replica_id: str) -> Replica | None:
        """A replica by its name, if there is one."""
        return self._replicas.get(replica_id)

    def add(self, replica: Replica) -> None:
        """Take a replica in; it has yet to prove itself."""
        self._replicas[replica.id] = replica

    def remove(self, replica_id: str) -> None:
        """Forget a replica."""
        if self._replicas.pop(replica_id, None) is not None:
            self.scheduler.leave(replica_id)

    def report(self, replica: Replica, event: Event, now: float) -> None:
        """Something happened to a replica.

        Args:
            replica: which.
            event: what.
            now: when, in seconds.
        """
        before = replica.member
        after = step(before, event, now, self.policy)
        if after is before:
            return
        soft = event in _SOFT and before.state == "ready" and after.state == "ejected"
        if soft and not self._can_spare():
            return
        self._stand(replica, after, now)
        if event in _FATAL:
            self.scheduler.index.clear(replica.id)

    def readmit(self, replica: Replica, now: float) -> None:
        """Let a drained replica prove itself again."""
        if replica.member.state == "draining":
            self._stand(replica, joined(now), now)

    def tick(self, now: float) -> None:
        """Raise the shares of those that re-enter slowly."""
        for replica in self._replicas.values():
            if replica.member.ramped:
                self._weigh(replica, now)

    def ready(self) -> int:
        """How many take requests."""
        return sum(replica.member.takes_requests for replica in self._replicas.values())

    def back_in(self, now: float) -> float:
        """Seconds until the first replica may be back, where none takes requests."""
        ends = (
            replica.member.until - now
            for replica in self._replicas.values()
            if replica.member.state == "ejected"
        )
        return max(min(ends, default=0.0), 0.0)

    def _can_spare(self) -> bool:
        """Whether half of the replicas take requests even without one more."""
        standing = [r for r in self._replicas.values() if r.member.state != "draining"]
        return 2 * (self.ready() - 1) >= len(standing)

    def _stand(self, replica: Replica, after: Member, now: float) -> None:
        before, replica.member = replica.member, after
        if after.state == "ready" and replica.id not in self.scheduler.loads:
            self.scheduler.join(replica.id, self.limits(replica))
        self._weigh(replica, now)
        if after.state != before.state:
            self.changed(replica, before)

    def _weigh(self, replica: Replica, now: float) -> None:
        if replica.id in self.scheduler.loads:
            self.scheduler.weigh(replica.id, weight(replica.member, now, self.policy))
