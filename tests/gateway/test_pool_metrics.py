"""Pools in the exposition text."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from sluice.gateway.pool_metrics import MAX_REPLICAS, PoolMetrics
from sluice.router.pool.engine_metrics import EngineReadings
from sluice.router.pool.kv_events import Stored
from sluice.router.pool.placement import Decision
from sluice.router.pool.snapshot import PoolSnapshot
from tests.router.pool.live_fakes import Harness


def seen(pool: Harness) -> tuple[PoolMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = PoolMetrics(registry)
    metrics.pool_seen("p", pool.pool.snapshot())
    return metrics, registry


def test_replicas_show_what_they_say() -> None:
    pool = Harness("ab")
    pool.pool.roster["a"].readings = EngineReadings(running=3, prefix_queries=10, prefix_hits=5)
    _, registry = seen(pool)
    labels = {"pool": "p", "replica": "a"}
    assert registry.get_sample_value("gw_pool_replica_running", labels) == 3
    assert registry.get_sample_value("gw_pool_replica_prefix_hits", labels) == 5
    assert registry.get_sample_value("gw_pool_replica_state", labels) == 1
    assert registry.get_sample_value("gw_pool_replica_running", {**labels, "replica": "b"}) is None


def test_who_left_shows_no_more() -> None:
    metrics, registry = seen(Harness("ab"))
    metrics.replica_left("p", "a")
    assert b'replica="a"' not in generate_latest(registry)
    assert b'replica="b"' in generate_latest(registry)


def test_the_number_of_series_is_bounded() -> None:
    metrics, registry = seen(Harness("a"))
    (one,) = Harness("a").pool.snapshot().replicas
    many = tuple(replace(one, id=f"r{number}") for number in range(2 * MAX_REPLICAS))
    metrics.pool_seen("p", PoolSnapshot("p", "round_robin", many, ()))
    assert generate_latest(registry).count(b"gw_pool_replica_state{") == MAX_REPLICAS


def test_requests_are_counted_by_class_and_reason() -> None:
    metrics, registry = seen(Harness("a"))
    metrics.request_placed("p", "batch", "low", 0.2, Decision("a", 0, 1, "prefix"))
    metrics.request_shed("p", "batch", "low", "wait")
    metrics.request_moved("p", "lost")
    metrics.request_yielded("p")
    metrics.kv_events_applied("p", {"stored": 3, "removed": 2})
    metrics.kv_events_missed("p", healed=True)
    labels = {"pool": "p", "tier": "batch", "priority": "low"}
    assert registry.get_sample_value("gw_pool_queue_seconds_count", labels) == 1
    sheds = {**labels, "reason": "wait"}
    assert registry.get_sample_value("gw_pool_sheds_total", sheds) == 1
    placed = {"pool": "p", "reason": "prefix"}
    assert registry.get_sample_value("gw_pool_placements_total", placed) == 1
    assert registry.get_sample_value("gw_pool_yields_total", {"pool": "p"}) == 1
    stored = {"pool": "p", "event": "stored"}
    assert registry.get_sample_value("gw_pool_kv_events_total", stored) == 3
    healed = {"pool": "p", "outcome": "healed"}
    assert registry.get_sample_value("gw_pool_kv_event_gaps_total", healed) == 1


def test_who_is_heard_shows_its_blocks() -> None:
    pool = Harness("ab", kv_events=True)
    assert pool.pool.caches is not None
    pool.pool.caches.begin("a")
    pool.pool.caches.apply("a", [Stored((1, 2), None, 16, None, 0)])
    _, registry = seen(pool)
    shown = [
        registry.get_sample_value("gw_pool_replica_kv_blocks", {"pool": "p", "replica": name})
        for name in "ab"
    ]
    assert shown == [2, 0]
