"""Prometheus metrics. Labels come from the configuration and from small fixed sets only.

Names follow the OpenTelemetry GenAI server conventions where there is one, `gw_*` elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.learning.health import AliasHealth
from sluice.gateway.quotas.accounts import Account, Pot
from sluice.router.breakers import State

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 60.0),
)
TPOT_BUCKETS = (
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
)
DURATION_BUCKETS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
COMMIT_BUCKETS = (
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
)

_STATES: dict[State, int] = {"closed": 0, "half_open": 1, "open": 2}

_log = structlog.get_logger("sluice.dispatch")

#: The model label of requests that name no model of the catalogue.
UNKNOWN = "other"


class Served:
    """The metrics of one endpoint, model and tier, resolved once."""

    def __init__(self, metrics: Metrics, endpoint: str, model: str, tier: str) -> None:
        self.ttft = metrics.ttft.labels(model, tier)
        self.tpot = metrics.tpot.labels(model, tier)
        self.duration = metrics.duration.labels(model, tier)
        self.input_tokens = metrics.tokens.labels(model, tier, "input")
        self.cached_input_tokens = metrics.tokens.labels(model, tier, "cached_input")
        self.output_tokens = metrics.tokens.labels(model, tier, "output")
        self.outcome: Callable[[str], Counter] = lru_cache(
            lambda outcome: metrics.requests.labels(endpoint, model, tier, outcome)
        )


class Metrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self, shared: Path | None = None) -> None:
        """Args:
        shared: the directory in which processes that share a port add up their metrics (see
            `prometheus_client.multiprocess`); None for a process on its own.
        """
        self.registry = CollectorRegistry()
        self._shared = shared
        served = ("model", "tier")
        self.requests = self._counter(
            "gw_requests", "Requests by outcome.", ("endpoint", *served, "outcome")
        )
        self.tokens = self._counter("gw_tokens", "Tokens charged.", (*served, "kind"))
        self.attempts = self._counter(
            "gw_upstream_attempts", "Upstream calls.", ("provider", "endpoint", "reason")
        )
        self.limit_refusals = self._counter(
            "gw_limit_refusals", "Requests that a caller's limit refused.", ("level", "limit")
        )
        self.budget_alerts = self._counter(
            "gw_budget_alerts", "Budgets whose alert was crossed.", ("level", "period")
        )
        self.idempotent = self._counter(
            "gw_idempotent_requests", "Requests with an Idempotency-Key.", ("result",)
        )
        self.lost_generations = self._counter(
            "gw_idempotent_generations_lost", "Generations whose gateway was found lost.", ()
        )
        self.shadow_requests = self._counter(
            "gw_shadow_requests", "Copies of requests to shadows.", ("model", "outcome")
        )
        self.auto_comparisons = self._counter(
            "gw_auto_comparisons", "Answers of `auto` that were to be compared.", ("outcome",)
        )
        self.auto_signals = self._counter(
            "gw_auto_signals", "What answers of `auto` themselves showed.", ("signal",)
        )
        self.auto_labels = self._gauge(
            "gw_auto_labels", "Requests with outcomes of both tiers.", ("alias",)
        )
        self.auto_score_psi = self._gauge(
            "gw_auto_score_psi",
            "How far the scores are from those at the model's birth (PSI).",
            ("alias",),
        )
        self.auto_outcome_drop = self._gauge(
            "gw_auto_outcome_drop",
            "By how much answers are surely worse than at the model's birth.",
            ("alias",),
        )
        self.usage_events = self._counter(
            "gw_usage_events", "Usage events made durable, by path.", ("path",)
        )
        self.breaker_state = self._gauge(
            "gw_breaker_state",
            "A deployment's breaker: 0 closed, 1 half open, 2 open.",
            ("deployment",),
        )
        self.in_flight = self._gauge(
            "gw_in_flight", "Requests in progress.", served, siblings="livesum"
        )
        self.spooled = self._gauge("gw_usage_spooled_bytes", "Usage events on disk, in bytes.")
        self.waiting = self._gauge(
            "gw_usage_stream_entries", "Groups of usage events that are not in the ledger yet."
        )
        self.sharers = self._gauge(
            "gw_limit_sharers", "Gateway processes that share limits, when last heard."
        )
        self.staleness = self._gauge(
            "gw_control_plane_staleness_seconds", "Age of the keys in memory."
        )
        self.loop_lag = self._gauge(
            "gw_event_loop_lag_seconds", "By how much the event loop was late last time."
        )
        self.ttft = self._histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the request's arrival to its first generated token.",
            TTFT_BUCKETS,
        )
        self.tpot = self._histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time between output tokens of a stream, after the first.",
            TPOT_BUCKETS,
        )
        self.duration = self._histogram(
            "gen_ai_server_request_duration_seconds", "Whole requests.", DURATION_BUCKETS
        )
        self.admission = Histogram(
            "gw_admission_seconds",
            "Asking Redis whether requests may be let in, by group.",
            buckets=COMMIT_BUCKETS,
            registry=self.registry,
        )
        self.commit = Histogram(
            "gw_usage_commit_seconds",
            "Making a group of usage events durable.",
            buckets=COMMIT_BUCKETS,
            registry=self.registry,
        )
        for path in ("stream", "spool"):
            self.usage_events.labels(path)
        self._served: dict[tuple[str, str, str], Served] = {}

    def observe(self, exchange: Exchange, admitted: Admitted) -> None:
        """Count a request that went upstream and has ended."""
        served = self._served_by(exchange.endpoint.value, admitted.model.name, admitted.tier)
        usage = exchange.usage
        served.outcome(exchange.outcome).inc()
        served.duration.observe(time.monotonic() - exchange.started)
        served.input_tokens.inc(usage.input_tokens)
        served.cached_input_tokens.inc(usage.cached_input_tokens)
        served.output_tokens.inc(usage.output_tokens)
        first, last = exchange.first_token_at, exchange.last_token_at
        if first is not None:
            served.ttft.observe(first - exchange.started)
            if last is not None and usage.output_tokens > 1:
                served.tpot.observe((last - first) / (usage.output_tokens - 1))

    def _served_by(self, endpoint: str, model: str, tier: str) -> Served:
        key = (endpoint, model, tier)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = Served(self, *key)
        return found

    def breaker_changed(self, name: str, old: State, new: State) -> None:
        """See `BreakerObserver`; `name` is a deployment of the configuration."""
        self.breaker_state.labels(name).set(_STATES[new])
        _log.warning("breaker moved", deployment=name, old=old, new=new)

    def cooldown_set(self, name: str, seconds: float, limited: bool) -> None:
        """See `BreakerObserver`."""
        _log.info("deployment rests", deployment=name, seconds=seconds, limited=limited)

    def committed(self, path: str, events: int, seconds: float) -> None:
        """See `RecorderObserver`."""
        self.usage_events.labels(path).inc(events)
        self.commit.observe(seconds)

    def spooled_bytes(self, size: int) -> None:
        """The spool's size."""
        self.spooled.set(size)

    def waiting_entries(self, count: int) -> None:
        """See `RecorderObserver`."""
        self.waiting.set(count)

    def keyed(self, result: str) -> None:
        """What a request with an Idempotency-Key came to."""
        self.idempotent.labels(result).inc()

    def alias_found(self, health: AliasHealth) -> None:
        """See `HealthObserver`."""
        self.auto_labels.labels(health.alias).set(health.labels)
        self.auto_score_psi.labels(health.alias).set(health.score_psi or 0.0)
        self.auto_outcome_drop.labels(health.alias).set(health.outcome_drop or 0.0)

    def told(self, requests: int, seconds: float) -> None:
        """See `CountersObserver`."""
        if requests:
            self.admission.observe(seconds)

    def alert(self, account: Account, pot: Pot) -> None:
        """See `CountersObserver`."""
        scope = account.scope
        self.budget_alerts.labels(scope.level, pot.budget.period).inc()
        _log.warning(
            "budget alert",
            level=scope.level,
            id=scope.id,
            name=scope.name,
            period=pot.budget.period,
            alert_usd=str(pot.budget.alert_usd),
            spent_nano_usd=pot.total_spent,
        )

    def render(self) -> bytes:
        """The exposition text."""
        if self._shared is None:
            return generate_latest(self.registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone, str(self._shared))
        return generate_latest(everyone)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        siblings: Literal["livemax", "livesum"] = "livemax",
    ) -> Gauge:
        """A gauge; `siblings` says how the values of processes that share a port join."""
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=siblings)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model", "tier"), buckets=buckets, registry=self.registry)
