"""The meter: what an exchange used and what it costs, as a usage event."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from sluice.billing.events import RouteDecision, UsageEvent
from sluice.billing.prices import FREE, Price
from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.output_rates import OutputRates
from sluice.router.auto.choice import Course
from sluice.wire.request import Request
from sluice.wire.usage import Usage

#: Courses of requests that are remembered.
_COURSES = 1_000


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
        self._courses: dict[Course, RouteDecision] = {}

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
            decision=self._decision(exchange),
        )

    def _decision(self, exchange: Exchange) -> RouteDecision | None:
        choice = exchange.choice
        if choice is None:
            return None
        course = choice.course
        return replace(
            self._courses.get(course) or self._of_course(course),
            tier_used=course.tier_of(exchange.model_used),
            score=choice.score,
            reasons=choice.reasons,
            features=choice.features,
            tokens=choice.tokens,
            conversation=choice.conversation,
        )

    def _of_course(self, course: Course) -> RouteDecision:
        """What is the same for all requests of a course, the price as well: when one changes the
        models do, and courses are new ones then."""
        decision = course.decision
        if len(self._courses) >= _COURSES:
            self._courses = {}
        made = self._courses[course] = RouteDecision(
            alias=course.alias,
            mode=decision.mode,
            tier=decision.tier,
            model=decision.models[0].name,
            tier_used=decision.tier,
            score=0.0,
            scorer=course.scorer,
            strong_model=decision.strong,
            strong_price=self._prices.get(decision.strong, FREE).text,
            threshold=decision.threshold,
            needs=tuple(course.capabilities),
        )
        return made

    def lost(self, exchange: Exchange, admitted: Admitted) -> UsageEvent:
        """The event of an exchange under way, should its gateway be lost now."""
        usage = self.partial(exchange, admitted.request)
        return replace(
            self.event(exchange, admitted),
            status="error",
            error_code="gateway_lost",
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            cost_nano_usd=self._cost(exchange, admitted, usage),
            estimated=usage.estimated,
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
