"""Metrics of batches, of one worker; how much waits is the installation's."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from sluice.gateway.batch.batches import ENDED
from sluice.gateway.batch.items import Lapsed, Outcome, Retry
from sluice.gateway.batch.sharing import Job


class BatchMetrics:
    """In a registry that is somebody else's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._items = Counter(
            "gw_batch_items",
            "Runs of items of batches, by outcome.",
            ("outcome",),
            registry=registry,
        )
        self._waiting = Gauge(
            "gw_batch_items_waiting", "Items of all batches that wait.", registry=registry
        )
        self._running = Gauge(
            "gw_batch_items_running", "Items of all batches that run.", registry=registry
        )
        self._native = Gauge(
            "gw_batch_items_native",
            "Items of all batches that are with a provider's own batches.",
            registry=registry,
        )
        self._oldest = Gauge(
            "gw_batch_oldest_seconds",
            "Since the oldest batch was made that has items waiting; 0: there is none.",
            registry=registry,
        )
        self._open = Gauge("gw_batches_open", "Batches in progress.", registry=registry)
        self._closest = Gauge(
            "gw_batch_window_seconds",
            "Until the window of a batch in progress closes, the first one's; 0: there is none.",
            registry=registry,
        )
        self._ended = Counter(
            "gw_batches_ended", "Batches, by how they ended.", ("state",), registry=registry
        )
        for outcome in ("ok", "failed", "retried", "waits", "discarded", "lost", "given_up"):
            self._items.labels(outcome)
        for state in sorted(ENDED):
            self._ended.labels(state)

    def settled(self, outcome: Outcome, counted: bool) -> None:
        """An outcome was written down, or thrown away since the item was done already."""
        if not counted:
            word = "discarded"
        elif isinstance(outcome, Retry):
            word = "retried" if outcome.counts else "waits"
        else:
            word = "ok" if outcome.ok else "failed"
        self._items.labels(word).inc()

    def lapsed(self, lapsed: Lapsed) -> None:
        """Items were found whose workers were lost."""
        self._items.labels("lost").inc(lapsed.again)
        self._items.labels("given_up").inc(lapsed.given_up)

    def standing(self, jobs: Sequence[Job]) -> None:
        """What is open now."""
        self._open.set(len(jobs))
        self._waiting.set(sum(job.waiting for job in jobs))
        self._running.set(sum(job.running for job in jobs))
        self._native.set(sum(job.native for job in jobs))
        self._oldest.set(max((job.age_seconds for job in jobs if job.waiting), default=0.0))
        self._closest.set(min((job.seconds_left for job in jobs), default=0.0))

    def ended(self, state: str) -> None:
        """A batch came to its end."""
        self._ended.labels(state).inc()
