"""How a pool is at one moment, for operators and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.router.pool.config import PoolConfig
from sluice.router.pool.engine_caches import EngineCaches
from sluice.router.pool.fair_queue import Priority, Tier
from sluice.router.pool.membership import State
from sluice.router.pool.placement import PolicyName
from sluice.router.pool.roster import Replica, Roster
from sluice.router.pool.scheduler import PoolScheduler


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica.

    Attributes:
        id: its name in the pool.
        url: its address.
        state: its standing.
        state_seconds: for how long it has had that.
        cause: what made it so, in words; None at first.
        weight: the share of the usual load that it is given.
        model, version: what its worker says that it serves; None without a worker.
        outstanding: requests there, of all gateways as far as this one knows.
        queued_prefill_tokens: prompt tokens there that no first token has paid for, likewise.
        prefill_rate: prompt tokens a second that it is seen to compute.
        kv_blocks: blocks of its own that it says it has in its prefix cache, 0 while it is not
            heard; None: nobody listens.
        indexed_blocks, index_capacity: blocks of text that it is believed to have cached, and to
            have room for.
        running, waiting: requests in its batch and in its own queue, by its own metrics.
        kv_usage: share of its KV cache in use.
        prefix_queries, prefix_hits: tokens looked up and found in its prefix cache.
        preemptions: since it started.
        hit_rate: the share of its prompt tokens that were found.
    """

    id: str
    url: str
    state: State
    state_seconds: float
    cause: str | None
    weight: float
    model: str | None
    version: str | None
    outstanding: int
    queued_prefill_tokens: int
    prefill_rate: float
    kv_blocks: int | None
    indexed_blocks: int
    index_capacity: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    prefix_queries: int | None
    prefix_hits: int | None
    preemptions: int | None
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Requests of one class that wait in this gateway."""

    tier: Tier
    priority: Priority
    waiting: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool.

    Attributes:
        name: the pool's.
        placement: its policy.
        replicas: in the order in which they came.
        queue: every class, those that nobody waits in included.
    """

    name: str
    placement: PolicyName
    replicas: tuple[ReplicaSnapshot, ...]
    queue: tuple[QueueDepth, ...]


_TIERS: tuple[Tier, ...] = ("interactive", "batch")
_PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")


def take_snapshot(
    config: PoolConfig,
    scheduler: PoolScheduler,
    roster: Roster,
    waiting: Mapping[tuple[Tier, Priority], int],
    now: float,
    caches: EngineCaches | None = None,
) -> PoolSnapshot:
    """Put together what the parts of a pool know."""
    return PoolSnapshot(
        config.name,
        config.placement,
        tuple(_of_replica(replica, scheduler, now, caches) for replica in roster),
        tuple(
            QueueDepth(tier, priority, waiting.get((tier, priority), 0))
            for tier in _TIERS
            for priority in _PRIORITIES
        ),
    )


def _of_replica(
    replica: Replica, scheduler: PoolScheduler, now: float, caches: EngineCaches | None
) -> ReplicaSnapshot:
    member, readings, said = replica.member, replica.readings, replica.announcement
    known = replica.id in scheduler.loads
    load = scheduler.loads[replica.id] if known else None
    return ReplicaSnapshot(
        id=replica.id,
        url=replica.url,
        state=member.state,
        state_seconds=now - member.since,
        cause=None if member.cause is None else member.cause.value,
        weight=0.0 if load is None else load.weight,
        model=None if said is None else said.model,
        version=None if said is None else said.version,
        outstanding=0 if load is None else load.running,
        queued_prefill_tokens=0 if load is None else load.queued_prefill_tokens,
        prefill_rate=scheduler.prefill_rate(replica.id) or 0.0,
        kv_blocks=None if caches is None else caches.resident(replica.id),
        indexed_blocks=scheduler.index.size(replica.id) if known else 0,
        index_capacity=scheduler.index.capacity(replica.id) if known else 0,
        running=None if readings is None else readings.running,
        waiting=None if readings is None else readings.waiting,
        kv_usage=None if readings is None else readings.kv_usage,
        prefix_queries=None if readings is None else readings.prefix_queries,
        prefix_hits=None if readings is None else readings.prefix_hits,
        preemptions=None if readings is None else readings.preemptions,
        hit_rate=None if readings is None else readings.hit_rate,
    )
