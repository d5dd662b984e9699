"""The meter: what an exchange used and what it costs, as a usage event."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from sluice.billing.events import RouteDecision, UsageEvent
from sluice.billing.prices import FREE, Price
from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.output_rates import OutputRates
from sluice.wire.request import Request
from sluice.wire.usage import Usage


class Meter:
    """Turns exchanges into usage events."""

    def __init__(self, prices: Mapping[str, Price], gateway: str, rates: OutputRates) -> None:
        """Args:
        prices: by model name; a model without one is free.
        gateway: this process's id.
        rates: learn by whole answers.
        """
        self._prices = prices
        self._gateway = gateway
        self._rates = rates

    def event(self, exchange: Exchange, admitted: Admitted) -> UsageEvent:
        """The event of an exchange that has ended."""
        usage = exchange.usage
        now = time.monotonic()
        ttft = exchange.first_token_at
        return UsageEvent(
            request_id=exchange.id,
            time_us=exchange.time_us,
            team_id=admitted.principal.team_id,
            key_id=admitted.principal.key_id,
            endpoint=exchange.endpoint.value,
            model=admitted.request.model,
            model_used=exchange.model_used or admitted.model.name,
            deployment=exchange.deployment_name,
            tier=admitted.tier,
            status=exchange.status,
            error_code=exchange.error_code,
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            cost_nano_usd=self._cost(exchange, admitted, usage),
            latency_us=int((now - exchange.started) * 1e6),
            ttft_us=None if ttft is None else int((ttft - exchange.started) * 1e6),
            attempts=exchange.attempts,
            attempt_log=", ".join(exchange.attempt_log),
            estimated=usage.estimated,
            gateway=self._gateway,
            decision=self._decision(exchange, admitted, usage),
        )

    def _decision(
        self, exchange: Exchange, admitted: Admitted, usage: Usage
    ) -> RouteDecision | None:
        choice = exchange.choice
        if choice is None:
            return None
        decision = choice.decision
        strong = self._prices.get(decision.strong, FREE)
        return RouteDecision(
            alias=choice.alias,
            mode=decision.mode,
            tier=decision.tier,
            model=decision.models[0].name,
            tier_used=choice.tier_of(exchange.model_used),
            score=choice.score,
            scorer=choice.scorer,
            strong_model=decision.strong,
            strong_cost_nano_usd=strong.cost(usage, batch=admitted.tier == "batch"),
            threshold=decision.threshold,
            reasons=choice.reasons,
            features=choice.features,
            needs=tuple(choice.capabilities),
            tokens=choice.tokens,
            conversation=choice.conversation,
        )

    def lost(self, exchange: Exchange, admitted: Admitted) -> UsageEvent:
        """The event of an exchange under way, should its gateway be lost now."""
        usage = self.partial(exchange, admitted.request)
        return msgspec.structs.replace(
            self.event(exchange, admitted),
            status="error",
            error_code="gateway_lost",
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            cost_nano_usd=self._cost(exchange, admitted, usage),
            estimated=usage.estimated,
            decision=self._decision(exchange, admitted, usage),
        )

    def _cost(self, exchange: Exchange, admitted: Admitted, usage: Usage) -> int:
        price = self._prices.get(exchange.model_used or admitted.model.name, FREE)
        return price.cost(usage, batch=admitted.tier == "batch")

    def learn(self, exchange: Exchange, usage: Usage) -> None:
        """Take a complete answer into its deployment's output rate."""
        seconds = time.monotonic() - exchange.attempt_started_at
        self._rates.learn(exchange.deployment_name, seconds, usage.output_tokens)

    def partial(self, exchange: Exchange, request: Request) -> Usage:
        """What was used by an answer that broke off, see `OutputRates.used`."""
        seconds = time.monotonic() - exchange.attempt_started_at
        return self._rates.used(exchange.deployment_name, seconds, request, exchange.stream)
