"""The pipeline: every data-plane request, from bytes to a durable charge.

`_serve` reads top to bottom. What can go wrong before an upstream is called is refused and costs
nothing; from the first upstream call on, every way out ends in exactly one usage record.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import structlog

from sluice.backends.base import BackendError, Endpoint, UpstreamResponse
from sluice.billing.recorder import Charges, UsageNotDurable
from sluice.gateway.attempts import Attempts
from sluice.gateway.auth import KeyRing, Principal, credential_of
from sluice.gateway.conversations import Conversations
from sluice.gateway.errors import GatewayError, from_limits, from_resting, from_upstream
from sluice.gateway.exchange import Admitted, Exchange, Outcome
from sluice.gateway.idempotency.key import key_of
from sluice.gateway.idempotency.keyed import KeyedAnswers
from sluice.gateway.intake import (
    LET_GO_SECONDS,
    ClientLeft,
    Received,
    broken_off,
    read_body,
    receive_body,
    requested_priority,
    too_slow,
)
from sluice.gateway.learning.observer import AnswerObserver
from sluice.gateway.lifeline import Cut, Lifelines
from sluice.gateway.meter import Meter
from sluice.gateway.metrics import UNKNOWN, Metrics
from sluice.gateway.model_used import in_answer, in_events
from sluice.gateway.output_bounds import bounded
from sluice.gateway.prefix_salts import PrefixSalts
from sluice.gateway.quotas.admission import Admission, AdmissionAway, AdmissionRefused
from sluice.gateway.quotas.headers import (
    Header,
    Left,
    anthropic_headers,
    left_of,
    openai_headers,
)
from sluice.gateway.quotas.needs import Needs
from sluice.gateway.relay import (
    Ending,
    ErrorEnding,
    NoEnding,
    WholeEnding,
    ending_response,
    relay_stream,
)
from sluice.gateway.tenancy.limits import Policy, less_urgent
from sluice.router.auto.alias import Alias
from sluice.router.auto.router import AutoRouter
from sluice.router.dispatch import Dispatcher, StreamStart, TargetsResting, UpstreamFailure
from sluice.router.plan import Route
from sluice.router.policy import Router, RoutingRefused, conversation_of
from sluice.router.shadows import Shadows
from sluice.router.translation import Call
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request
from sluice.wire.usage import Usage

#: How long a finished upstream may take to close its response before its connection is dropped.
CLOSE_SECONDS = 1.0

#: The header by which a client names the session that its request belongs to.
_SESSION = b"x-session-id"

_log = structlog.get_logger("sluice.request")


class Pipeline:
    """Serves data-plane requests; see the module.

    Attributes:
        draining: the process is shutting down and takes no new requests.
    """

    def __init__(
        self,
        *,
        keys: KeyRing,
        router: Router,
        auto: AutoRouter,
        dispatcher: Dispatcher,
        shadows: Shadows,
        meter: Meter,
        recorder: Charges,
        lifelines: Lifelines,
        metrics: Metrics,
        conversations: Conversations,
        keyed: KeyedAnswers,
        needs: Needs,
        admission: Admission,
        salts: PrefixSalts,
        max_body_bytes: int,
        body_seconds: float,
        answers: AnswerObserver,
    ) -> None:
        self._keys = keys
        self._router = router
        self._auto = auto
        self._dispatcher = dispatcher
        self._shadows = shadows
        self._meter = meter
        self._recorder = recorder
        self._lifelines = lifelines
        self._metrics = metrics
        self._conversations = conversations
        self._keyed = keyed
        self._needs = needs
        self._admission = admission
        self._salts = salts
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds
        self._answers = answers
        self.draining = False

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request, whatever happens."""
        self._lifelines.add(exchange.lifeline)
        try:
            await self._serve(exchange)
        except GatewayError as error:
            await self._refuse(exchange, error)
        except ClientLeft:
            self._count(exchange, "cancelled")
            await ErrorEnding(broken_off()).send(exchange)  # it may be there, and have erred
        except asyncio.CancelledError:
            if not exchange.lifeline.caught():
                raise
            await self._cut_early(exchange)
        except Exception:  # noqa: BLE001 - the edge: whatever we did wrong, the caller is told
            _log.exception("request failed", request_id=exchange.id)
            await self._refuse(exchange, GatewayError.internal())
        finally:
            await self._finish(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        principal = self._authenticate(exchange)
        received = await self._receive(exchange, principal)
        key = key_of(exchange.headers)
        if key is not None and await self._keyed.answer(exchange, principal, received, key, self):
            return
        received = await self._recall(exchange, principal, received)
        route = self._route(exchange, principal, received)
        request = bounded(exchange.endpoint, received.request, route.model, principal.policy)
        exchange.admitted = Admitted(principal, route.model, request, received.tier)
        call = self._call(exchange, principal, request, received)
        await self._admit(exchange, principal.policy, route, call, received.body)
        self._answers.listen(exchange, call)
        ending = await self._answer(exchange, exchange.admitted, route, call)
        ending = await self._settle(exchange, ending, call)
        await ending.send(exchange)
        self._answers.answered(exchange, call, ending)

    def _authenticate(self, exchange: Exchange) -> Principal:
        """Before the body: who is unknown has nothing read."""
        if self.draining:
            raise GatewayError.draining()
        if exchange.method != "POST":
            raise GatewayError.invalid(
                "This endpoint takes POST only.", code="method_not_allowed", status=405
            )
        principal = exchange.principal
        if principal is None:
            principal = self._keys.authenticate(credential_of(exchange.headers))
        if principal is None:
            raise GatewayError.unauthenticated()
        exchange.team_id = principal.team_id
        if not principal.policy.allows_endpoint(exchange.endpoint):
            raise GatewayError.endpoint_forbidden(exchange.endpoint.value)
        return principal

    async def _receive(self, exchange: Exchange, principal: Principal) -> Received:
        body = await receive_body(exchange, self._max_body_bytes, self._body_seconds)
        exchange.lifeline.watch_client(exchange.receive)
        return read_body(exchange, principal, body)

    async def _recall(
        self, exchange: Exchange, principal: Principal, received: Received
    ) -> Received:
        """With what it continues."""
        if exchange.endpoint is not Endpoint.RESPONSES:
            return received
        conversation = await self._conversations.recall(principal.team_id, received.request)
        return received.continuing(conversation)

    def _call(
        self, exchange: Exchange, principal: Principal, request: Request, received: Received
    ) -> Call:
        return Call(
            endpoint=exchange.endpoint,
            request=request,
            request_id=exchange.id,
            created=exchange.time_us // 1_000_000,
            encoding=received.encoding,
            headers=received.headers,
            conversation=received.conversation,
            cache_salt=self._salt(principal, request),
            team_id=principal.team_id,
            tier=received.tier,
            priority=less_urgent(principal.policy.priority, requested_priority(exchange)),
        )

    def _salt(self, principal: Principal, request: Request) -> str | None:
        try:
            return self._salts.salt(
                principal.team_id, principal.policy.isolate_prefix_cache, request
            )
        except InvalidRequest as error:
            raise GatewayError.of_request(error) from None

    def _route(self, exchange: Exchange, principal: Principal, received: Received) -> Route:
        name, policy, team = received.request.model, principal.policy, principal.team_id
        alias = self._auto.find(name, team)
        try:
            if alias is None:
                conversation = conversation_of(exchange.header(_SESSION), exchange.id)
                route = self._router.route(
                    name, exchange.endpoint, received.tier, conversation, team
                )
            else:
                route = self._choose(exchange, alias, principal, received)
        except RoutingRefused as error:
            raise GatewayError.of_routing(error) from None
        if alias is None:
            if not policy.allows_model(name):
                raise GatewayError.model_forbidden(name)
            route = route.only(policy.allows_model)
        exchange.model_used = route.model.name
        total = max(deployment.timeouts.total for deployment in route.model.deployments)
        exchange.lifeline.total_at = exchange.started + total
        return route

    def _choose(
        self, exchange: Exchange, alias: Alias, principal: Principal, received: Received
    ) -> Route:
        """For `auto`: the models that are good enough, the cheapest of them first."""
        policy = principal.policy
        if not policy.allows_model(alias.name):
            raise GatewayError.model_forbidden(alias.name)
        exchange.choice = choice = self._auto.route(
            alias,
            received.request,
            exchange.endpoint,
            received.tier,
            exchange.header(_SESSION),
            None if received.conversation is None else received.conversation.key,
            exchange.id,
            policy,
        )
        return choice.course.route

    async def _admit(
        self, exchange: Exchange, policy: Policy, route: Route, call: Call, body: bytes
    ) -> None:
        """Against every limit of the caller's, in one decision; nothing where it has none."""
        exchange.time_us = self._admission.now_us()
        batch = call.tier == "batch"
        if not (policy.counted_batch if batch else policy.counted):
            return
        stored = b"" if call.conversation is None else call.conversation.stored
        need = self._needs.of(exchange.endpoint, call.request, body, route.models(), stored)
        try:
            # mostly so, and then there is nothing to wait for
            reservation = self._admission.from_share(policy, need, batch=batch)
            if reservation is None:
                reservation = await self._admission.admit(policy, need, batch=batch)
        except AdmissionRefused as error:
            self._metrics.limit_refusals.labels(
                error.refused.account.scope.level, error.refused.dimension
            ).inc()
            left = left_of(self._admission.standing(policy, batch=batch))
            exchange.limit_headers = _limit_headers(exchange, left)
            exchange.outcome = "limited"
            raise from_limits(error) from None
        except AdmissionAway:
            raise GatewayError.counters_away() from None
        exchange.reservation = reservation
        exchange.limit_headers = _limit_headers(exchange, reservation.left)

    async def _answer(
        self,
        exchange: Exchange,
        admitted: Admitted,
        route: Route,
        call: Call,
    ) -> Ending:
        """Dispatch and relay; give the ending that is due once the charge is durable."""
        in_flight = self._metrics.in_flight.labels(admitted.model.name, admitted.tier)
        in_flight.inc()
        try:
            answer = await self._dispatcher.dispatch(
                route, call, Attempts(exchange, self._metrics), exchange.lifeline.remaining
            )
            self._shadows.copy(route.model, call)
            chosen = None if exchange.choice is None else exchange.model_used
            if isinstance(answer, StreamStart):
                exchange.start = answer
                return await relay_stream(exchange, answer, in_events(answer.head, chosen))
            self._meter.learn(exchange, answer.usage)
            exchange.ended("ok", answer.usage)
            return WholeEnding(in_answer(answer.body, chosen))
        except InvalidRequest as refusal:
            error = GatewayError.of_request(refusal)
            exchange.ended("client_error", Usage(), error.detail.code)
            return ErrorEnding(error)
        except TargetsResting as resting:
            error = from_resting(resting)
            exchange.ended(_blame(error.status), Usage(), error.detail.code)
            return ErrorEnding(error)
        except UpstreamFailure as failure:
            error = from_upstream(failure)
            exchange.ended(_blame(error.status), Usage(), error.detail.code)
            return ErrorEnding(error)
        except asyncio.CancelledError:
            _drop(exchange)
            if not exchange.lifeline.caught():
                raise
            return self._interrupted(exchange, admitted.request)
        finally:
            in_flight.dec()

    def _interrupted(self, exchange: Exchange, request: Request) -> Ending:
        """The client left, a deadline passed, or the process must go."""
        usage = self._meter.partial(exchange, request)
        match exchange.lifeline.cut_by:
            case Cut.CLIENT_GONE:
                exchange.ended("cancelled", usage, "client_closed_request")
                return NoEnding()
            case Cut.CLIENT_STALLED:
                exchange.ended("cancelled", usage, "client_stalled")
                return NoEnding()
            case Cut.SHUTDOWN:
                exchange.ended("internal_error", usage, "shutting_down")
                return ErrorEnding(GatewayError.draining())
            case Cut.BETWEEN_TOKENS:
                if exchange.start is not None:
                    exchange.start.permit.failed()
                error = GatewayError.timeout("The upstream paused for too long.")
            case _:
                error = GatewayError.timeout("The upstream took too long.")
        exchange.ended("upstream_error", usage, error.detail.code)
        return ErrorEnding(error)

    async def _settle(self, exchange: Exchange, ending: Ending, call: Call) -> Ending:
        """Make the charge durable before the client can see the end.

        From here on nothing interrupts: a client that leaves at this very moment is charged for
        what was generated.
        """
        exchange.lifeline.release()
        if exchange.confirm is not None:
            await exchange.confirm()
        durable = self._charge(exchange)
        if durable is None:  # no upstream was called
            self._release(exchange)
            # It goes out in this turn of the loop: the answer must not overtake it, since its
            # caller may come again at once, by another gateway.
            await asyncio.sleep(0)
            self._count(exchange, exchange.outcome)
            return ending
        try:
            await asyncio.shield(durable)
        except UsageNotDurable:
            _log.critical("usage not durable", request_id=exchange.id)
            exchange.ended("internal_error", exchange.usage, "internal_error")
            return ErrorEnding(GatewayError.internal())
        if (response := ending_response(exchange, ending)) is not None:
            await self._conversations.remember(exchange.team_id, call, response, exchange.choice)
        return ending

    def _charge(self, exchange: Exchange) -> asyncio.Future[None] | None:
        """Hand the usage event over, once; None where no upstream was called."""
        admitted = exchange.admitted
        if admitted is None or not exchange.attempts or exchange.charged:
            return None
        exchange.charged = True
        event = self._meter.event(exchange, admitted)
        # not after the event: see `quotas.budgets`
        cost, time_us = event.cost_nano_usd, event.time_us
        if exchange.reservation is None:
            self._admission.charge(admitted.principal.policy, time_us, cost)
        else:
            tokens = event.input_tokens + event.output_tokens
            self._admission.settle(exchange.reservation, tokens, cost, time_us)
            if event.status == "ok" and not event.estimated:
                self._needs.learn(event.model, exchange.reservation.need, event.input_tokens)
        durable = self._recorder.submit(event)
        self._metrics.observe(exchange, admitted)  # while the event is on its way
        _log_request(exchange, admitted)
        return durable

    def _release(self, exchange: Exchange) -> None:
        """What an exchange was let in with is free again, unless it was charged."""
        if exchange.reservation is not None:
            self._admission.settle(exchange.reservation, 0, 0)

    async def _finish(self, exchange: Exchange) -> None:
        """Whatever happened: an upstream that was called is charged, and let go."""
        exchange.lifeline.release()
        self._lifelines.remove(exchange.lifeline)
        if exchange.attempts and exchange.admitted is not None and not exchange.charged:
            usage = self._meter.partial(exchange, exchange.admitted.request)
            exchange.ended("internal_error", usage, "internal_error")
            self._charge(exchange)
        self._release(exchange)
        if exchange.outcome == "ok" and exchange.start is not None:
            await _let_close(exchange.start.response)
        else:
            _drop(exchange)

    async def _cut_early(self, exchange: Exchange) -> None:
        """Interrupted before it could go upstream."""
        match exchange.lifeline.cut_by:
            case Cut.CLIENT_GONE | Cut.CLIENT_STALLED:
                self._count(exchange, "cancelled")
            case Cut.SHUTDOWN:
                await self._refuse(exchange, GatewayError.draining())
            case _:
                await asyncio.sleep(LET_GO_SECONDS)
                await self._refuse(exchange, too_slow())

    async def _refuse(self, exchange: Exchange, error: GatewayError) -> None:
        outcome: Outcome = "client_error" if error.status < 500 else "internal_error"
        self._count(exchange, "limited" if exchange.outcome == "limited" else outcome)
        _log.info(
            "request refused",
            request_id=exchange.id,
            team_id=exchange.team_id or None,
            endpoint=exchange.endpoint.value,
            status=error.status,
            error_code=error.detail.code,
        )
        await ErrorEnding(error).send(exchange)

    def _count(self, exchange: Exchange, outcome: Outcome) -> None:
        """Count a request that did not go upstream."""
        model = exchange.model_used or UNKNOWN
        self._metrics.requests.labels(exchange.endpoint.value, model, "interactive", outcome).inc()


def _limit_headers(exchange: Exchange, left: Left) -> list[Header]:
    if exchange.endpoint is Endpoint.MESSAGES:
        return anthropic_headers(left, datetime.now(UTC))
    return openai_headers(left)


def _blame(status: int) -> Outcome:
    if status == 429:
        return "limited"
    return "client_error" if status < 500 else "upstream_error"


def _log_request(exchange: Exchange, admitted: Admitted) -> None:
    _log.info(
        "request",
        request_id=exchange.id,
        team_id=admitted.principal.team_id,
        key_id=admitted.principal.key_id,
        endpoint=exchange.endpoint.value,
        model=admitted.model.name,
        deployment=exchange.deployment_name,
        outcome=exchange.outcome,
        error_code=exchange.error_code,
        attempts=exchange.attempts,
        input_tokens=exchange.usage.input_tokens,
        output_tokens=exchange.usage.output_tokens,
        latency_ms=round((time.monotonic() - exchange.started) * 1000, 3),
    )


def _drop(exchange: Exchange) -> None:
    """Close the upstream call: it sees its client leave, and stops."""
    if exchange.start is not None:
        exchange.start.response.close()


async def _let_close(response: UpstreamResponse) -> None:
    """After the end marker an upstream closes its response; then its connection serves again."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            while await response.next():
                pass
    except (TimeoutError, BackendError):
        response.close()
