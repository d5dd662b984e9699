"""What pools do, as metrics and in the log. Labels: pools of the configuration, their replicas, and
small fixed sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import lru_cache

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sluice.router.pool.fair_queue import Priority, Tier
from sluice.router.pool.kv_events import EventKind
from sluice.router.pool.membership import Event, State
from sluice.router.pool.observer import MoveReason
from sluice.router.pool.placement import Decision
from sluice.router.pool.snapshot import PoolSnapshot, ReplicaSnapshot

WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: Replicas with metrics of their own; further ones of a pool show in none.
MAX_REPLICAS = 256

_STATES: dict[State, int] = {"joining": 0, "ready": 1, "draining": 2, "ejected": 3}

_log = structlog.get_logger("sluice.pool")

Reading = Callable[[ReplicaSnapshot], float | None]

#: What is shown of each replica. Its own counters are gauges here: they are not counted by us, and
#: start anew when it does.
_READINGS: dict[str, tuple[str, Reading]] = {
    "state": ("0 joining, 1 ready, 2 draining, 3 ejected.", lambda r: _STATES[r.state]),
    "weight": ("Share of the usual load that it is given.", lambda r: r.weight),
    "outstanding": ("Requests there, of all gateways.", lambda r: r.outstanding),
    "queued_prefill_tokens": (
        "Prompt tokens there that no first token has come of.",
        lambda r: r.queued_prefill_tokens,
    ),
    "prefill_tokens_per_second": (
        "Rate at which it is seen to compute prompts.",
        lambda r: r.prefill_rate,
    ),
    "running": ("Requests in its batch, by its own metrics.", lambda r: r.running),
    "waiting": ("Requests in its own queue, by its own metrics.", lambda r: r.waiting),
    "kv_usage": ("Share of its KV cache in use.", lambda r: r.kv_usage),
    "prefix_queries": ("Tokens looked up in its prefix cache.", lambda r: r.prefix_queries),
    "prefix_hits": ("Tokens found in its prefix cache.", lambda r: r.prefix_hits),
    "preemptions": ("Requests that it preempted.", lambda r: r.preemptions),
    "kv_blocks": ("Blocks in its prefix cache, by its events.", lambda r: r.kv_blocks),
}


class PoolMetrics:
    """See `PoolObserver`."""

    def __init__(self, registry: CollectorRegistry, siblings: bool = False) -> None:
        """Args:
        registry: the gateway's.
        siblings: processes that share a port add up their metrics.
        """
        self._siblings = siblings
        classes = ("pool", "tier", "priority")
        self._waits = Histogram(
            "gw_pool_queue_seconds",
            "Time in the pool's queue.",
            classes,
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._waiting = Gauge(
            "gw_pool_queue_depth",
            "Requests that wait for a replica.",
            classes,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._sheds = Counter(
            "gw_pool_sheds", "Requests refused.", (*classes, "reason"), registry=registry
        )
        self._placements = Counter(
            "gw_pool_placements", "Requests placed.", ("pool", "reason"), registry=registry
        )
        self._moves = Counter(
            "gw_pool_moves",
            "Requests that a replica failed before it answered.",
            ("pool", "reason"),
            registry=registry,
        )
        self._yields = Counter(
            "gw_pool_yields", "Requests taken back for others.", ("pool",), registry=registry
        )
        self._kv_events = Counter(
            "gw_pool_kv_events",
            "Blocks that engines said were stored or removed, and caches cleared.",
            ("pool", "event"),
            registry=registry,
        )
        self._kv_gaps = Counter(
            "gw_pool_kv_event_gaps",
            "Times that an engine's messages were missed; healed: it sent them again.",
            ("pool", "outcome"),
            registry=registry,
        )
        self._replicas = {
            name: Gauge(
                f"gw_pool_replica_{name}",
                text,
                ("pool", "replica"),
                registry=registry,
                multiprocess_mode="livemax",
            )
            for name, (text, _) in _READINGS.items()
        }
        self._shown: dict[str, set[str]] = {}
        self._wait_of: Callable[[str, str, str], Histogram] = lru_cache(1024)(self._waits.labels)
        self._placed_of: Callable[[str, str], Counter] = lru_cache(1024)(self._placements.labels)

    def request_placed(
        self, pool: str, tier: Tier, priority: Priority, queued: float, decision: Decision
    ) -> None:
        """See `PoolObserver`."""
        self._wait_of(pool, tier, priority).observe(queued)
        self._placed_of(pool, decision.reason).inc()

    def request_shed(self, pool: str, tier: Tier, priority: Priority, reason: str) -> None:
        """See `PoolObserver`."""
        self._sheds.labels(pool, tier, priority, reason).inc()

    def request_moved(self, pool: str, reason: MoveReason) -> None:
        """See `PoolObserver`."""
        self._moves.labels(pool, reason).inc()

    def request_yielded(self, pool: str) -> None:
        """See `PoolObserver`."""
        self._yields.labels(pool).inc()

    def replica_changed(
        self, pool: str, replica: str, old: State, new: State, cause: Event | None
    ) -> None:
        """See `PoolObserver`."""
        _log.warning(
            "replica moved",
            pool=pool,
            replica=replica,
            old=old,
            new=new,
            cause=None if cause is None else cause.value,
        )

    def replica_left(self, pool: str, replica: str) -> None:
        """See `PoolObserver`."""
        _log.info("replica left", pool=pool, replica=replica)
        self._forget(pool, replica)

    def pool_seen(self, pool: str, snapshot: PoolSnapshot) -> None:
        """See `PoolObserver`."""
        for depth in snapshot.queue:
            self._waiting.labels(pool, depth.tier, depth.priority).set(depth.waiting)
        shown = self._shown.setdefault(pool, set())
        for replica in snapshot.replicas:
            if replica.id not in shown and len(shown) >= MAX_REPLICAS:
                continue
            shown.add(replica.id)
            for name, (_, reading) in _READINGS.items():
                value = reading(replica)
                if value is not None:
                    self._replicas[name].labels(pool, replica.id).set(value)

    def kv_events_applied(self, pool: str, counts: Mapping[EventKind, int]) -> None:
        """See `PoolObserver`."""
        for kind, count in counts.items():
            self._kv_events.labels(pool, kind).inc(count)

    def kv_events_missed(self, pool: str, healed: bool) -> None:
        """See `PoolObserver`."""
        self._kv_gaps.labels(pool, "healed" if healed else "lost").inc()

    def _forget(self, pool: str, replica: str) -> None:
        """Take a replica's series away. Among siblings they can't be, and stay as those of one that
        is out; they go with the process."""
        shown = self._shown.get(pool, set())
        if replica not in shown:
            return
        if self._siblings:
            self._replicas["state"].labels(pool, replica).set(_STATES["ejected"])
            return
        shown.discard(replica)
        for gauge in self._replicas.values():
            with contextlib.suppress(KeyError):  # what it never said has no series
                gauge.remove(pool, replica)
