"""Calls that generate nothing and are requests of their caller's all the same: files, batches,
feedback. They count as requests a minute, with the headers and the refusals of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware

from sluice.gateway.batch.lines import MAX_BYTES
from sluice.gateway.batch.uploads import RequestBody
from sluice.gateway.errors import GatewayError, from_limits
from sluice.gateway.metrics import Metrics
from sluice.gateway.quotas.admission import Admission, AdmissionAway, AdmissionRefused
from sluice.gateway.quotas.headers import Header, left_of, openai_headers
from sluice.gateway.quotas.needs import BARE_CALL
from sluice.gateway.routes.access import Access
from sluice.gateway.tenancy.limits import Policy

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send


class CountedCalls(ASGIMiddleware):
    """Lets the calls of a route in; see the module. Administrators have no limits."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, access: Access, admission: Admission, metrics: Metrics) -> None:
        """Args:
        access: tells who calls.
        admission: lets in, or refuses.
        metrics: counts refusals.
        """
        self._access = access
        self._admission = admission
        self._metrics = metrics

    def __deepcopy__(self, _: object) -> CountedCalls:
        return self  # the framework copies handlers, with all that they have

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Let a call in, and say with its answer what is left.

        Raises:
            GatewayError: 401 for no valid credential, 429 for a limit, 503 where it can't be told.
        """
        connection: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(scope)
        try:
            caller = (await self._access.identify(connection)).principal
            headers = [] if caller is None else await self._admitted(caller.policy)
        except GatewayError:
            await RequestBody(receive).discard(MAX_BYTES)
            raise

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await next_app(scope, receive, answer if headers else send)

    async def _admitted(self, policy: Policy) -> list[Header]:
        if not policy.counted:
            return []
        try:
            reservation = await self._admission.admit(policy, BARE_CALL)
        except AdmissionRefused as error:
            refused = error.refused
            self._metrics.limit_refusals.labels(
                refused.account.scope.level, refused.dimension
            ).inc()
            refusal = from_limits(error)
            left = openai_headers(left_of(self._admission.standing(policy)))
            refusal.headers |= {name.decode(): value.decode() for name, value in left}
            raise refusal from None
        except AdmissionAway:
            raise GatewayError.counters_away() from None
        return openai_headers(reservation.left)  # nothing is held that were to be settled
