"""What a pool is told by its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sluice.router.pool.fair_queue import Priority, QueuePolicy
from sluice.router.pool.membership import HealthPolicy
from sluice.router.pool.placement import PolicyName


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """How often replicas are asked how they are, in seconds.

    Attributes:
        interval: between two looks at a replica.
        timeout: until an answer is too late. With two late answers in a row, a replica that hangs
            is out after `2 * interval + timeout`.
        probe_idle: between two tokens that an idle replica is asked for.
        scrape: between two readings of its metrics.
        stall: a stream that stands still for longer is taken for a sign of a hang.
        forget: after a worker was last heard, until its replica is forgotten.
    """

    interval: float = 0.4
    timeout: float = 0.9
    probe_idle: float = 5.0
    scrape: float = 2.0
    stall: float = 30.0
    forget: float = 60.0


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """One pool.

    Attributes:
        name: the provider's, and of the workers that may join.
        replicas: addresses of those that need no worker.
        discover: whether workers' replicas join.
        shared: other gateways may send to the same replicas.
        placement: which policy places requests.
        interactive_slo, batch_slo: seconds to the first token of a request of that tier; one that
            would take longer is refused. None: as long as its deadline lets it.
        max_running: sequences that a replica batches; None: what its worker says, or 256.
        max_batched_tokens: that one step of it computes; None: what its worker says, or 2,048.
        max_queued: requests that it may queue by itself.
        kv_blocks: of the engine's own size, in its KV cache; None: what it says.
        block_size: tokens in such a block, where `kv_blocks` is given.
        prefill_rate: prompt tokens a second that a replica computes, until that has been seen.
        bytes_per_token: of prompt text, until that has been seen.
        engine_priority: the engines schedule by priority.
        kv_events: what engines say of their caches, where they do, corrects what is believed.
        team_weights: shares of teams, relative to 1.
        team_priorities: the classes of teams; normal without. A request may ask for a lower one.
        replica_header: what callers hear of the replica: its name, a hash of it, or nothing.
        connect_seconds: limit on making a connection.
        health: how replicas are watched.
        membership: when they are taken out.
        queue: how requests wait.
    """

    name: str
    replicas: tuple[str, ...] = ()
    discover: bool = False
    shared: bool = True
    placement: PolicyName = "prefix_load"
    interactive_slo: float | None = 10.0
    batch_slo: float | None = None
    max_running: int | None = None
    max_batched_tokens: int | None = None
    max_queued: int = 64
    kv_blocks: int | None = None
    block_size: int = 16
    prefill_rate: float = 8_000.0
    bytes_per_token: float = 4.0
    engine_priority: bool = False
    kv_events: bool = False
    team_weights: Mapping[str, float] = field(default_factory=dict)
    team_priorities: Mapping[str, Priority] = field(default_factory=dict)
    replica_header: Literal["name", "hash", "none"] = "hash"
    connect_seconds: float = 5.0
    health: HealthChecks = field(default_factory=HealthChecks)
    membership: HealthPolicy = field(default_factory=HealthPolicy)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
