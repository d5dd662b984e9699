"""What an exchange keeps of its upstream calls."""

from __future__ import annotations

import time

from sluice.backends.base import Placed
from sluice.gateway.exchange import Exchange
from sluice.gateway.metrics import Metrics
from sluice.router.plan import Step
from sluice.wire.codec import StreamCodec


class Attempts:
    """Notes the upstream calls of an exchange; see `AttemptObserver`."""

    def __init__(self, exchange: Exchange, metrics: Metrics) -> None:
        self._exchange = exchange
        self._metrics = metrics

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None:
        exchange = self._exchange
        exchange.dropped = dropped
        exchange.deployment = step.deployment
        exchange.model_used = step.model.name
        exchange.attempts = step.number
        exchange.stream = None
        exchange.attempt_started_at = time.monotonic()

    def attempt_placed(self, placed: Placed) -> None:
        self._exchange.placed = placed

    def attempt_streams(self, stream: StreamCodec) -> None:
        self._exchange.stream = stream

    def attempt_ended(self, step: Step, reason: str) -> None:
        exchange = self._exchange
        exchange.attempt_log.append(f"{step.deployment.name}={reason}")
        self._metrics.attempts.labels(
            step.deployment.provider, exchange.endpoint.value, reason
        ).inc()
