"""`POST /v1/messages/count_tokens`: by the upstream if it can, else estimated; never billed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from sluice.backends.base import Backend, BackendError, Endpoint, UpstreamRequest
from sluice.gateway.errors import GatewayError, from_limits
from sluice.gateway.quotas.admission import Admission, AdmissionAway, AdmissionRefused
from sluice.gateway.quotas.needs import Need
from sluice.gateway.routes.access import Access
from sluice.gateway.tenancy.limits import NO_POLICY, Policy
from sluice.router.auto.documents import split_mode
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Deployment, Model
from sluice.router.credentials import Credentials
from sluice.router.policy import RoutingRefused, choose_model
from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_count import count_tokens_estimate
from sluice.wire.messages_errors import messages_error_body, messages_status
from sluice.wire.messages_request import read_members
from sluice.wire.objects import RawObject, encode, raw
from sluice.wire.request import member

_MAX_ANSWER_BYTES = 64 * 1024


class TokenCounter:
    """Counts the tokens of Messages requests."""

    def __init__(
        self,
        catalog: Catalog,
        table: RoutingTable,
        backends: Mapping[str, Backend],
        credentials: Mapping[str, Credentials],
        admission: Admission,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._backends = backends
        self._credentials = credentials
        self._admission = admission

    async def count(
        self,
        policy: Policy,
        team: str,
        body: bytes,
        headers: Mapping[str, str],
        request_id: str,
    ) -> bytes:
        """The answer to a count request. It is one of the caller's requests, without tokens or
        cost.

        Raises:
            GatewayError: the body is wrong, its model unknown, or the caller may not.
        """
        if not policy.allows_endpoint(Endpoint.COUNT_TOKENS):
            raise GatewayError.endpoint_forbidden(Endpoint.COUNT_TOKENS.value)
        try:
            members = read_members(body)
            name = member(members, "model", str) or ""
            counted = self._counted_as(name, policy, team)
            model = choose_model(self._catalog, counted, Endpoint.COUNT_TOKENS, "interactive")
        except InvalidRequest as error:
            raise GatewayError.of_request(error) from None
        except RoutingRefused as error:
            raise GatewayError.of_routing(error) from None
        asked = name if counted == name else split_mode(name)[0]
        if not policy.allows_model(asked):
            raise GatewayError.model_forbidden(asked)
        try:
            reservation = await self._admission.admit(policy, Need())
        except AdmissionRefused as error:
            raise from_limits(error) from None
        except AdmissionAway:
            raise GatewayError.counters_away() from None
        try:
            return await self._counted(model, members, body, headers, request_id)
        finally:
            self._admission.settle(reservation, 0, 0)

    def _counted_as(self, name: str, policy: Policy, team: str) -> str:
        """The model that counts for a name: of an `auto` alias the cheapest one that the caller
        may use, since the request that will be sent is not known yet."""
        auto = None if self._catalog.get(name) else self._table.auto(split_mode(name)[0], team)
        names = filter(policy.allows_model, () if auto is None else auto.models())
        return next((each for each in names if self._catalog.get(each) is not None), name)

    async def _counted(
        self,
        model: Model,
        members: RawObject,
        body: bytes,
        headers: Mapping[str, str],
        request_id: str,
    ) -> bytes:
        deployment = self._counting(model)
        if deployment is not None:
            text = encode({**members, "model": raw(deployment.model)})
            if (answer := await self._ask(deployment, text, headers, request_id)) is not None:
                return answer
        return encode({"input_tokens": count_tokens_estimate(body)})

    def _counting(self, model: Model) -> Deployment | None:
        """A deployment whose upstream counts tokens."""
        for deployment in model.deployments:
            if self._backends[deployment.provider].dialect.format == "anthropic":
                return deployment
        return None

    async def _ask(
        self, deployment: Deployment, body: bytes, headers: Mapping[str, str], request_id: str
    ) -> bytes | None:
        """The upstream's answer; None where it has none: an estimate is better than an error."""
        held = self._credentials.get(deployment.provider)
        chosen = None if held is None else held.choose(deployment.name)
        request = UpstreamRequest(
            endpoint=Endpoint.COUNT_TOKENS,
            model=deployment.model,
            body=body,
            stream=False,
            request_id=request_id,
            headers=headers,
            credential=None if chosen is None else chosen.secret,
        )
        try:
            response = await self._backends[deployment.provider].send(request)
            answer = await response.read(_MAX_ANSWER_BYTES)
        except BackendError:
            return None
        return answer if response.status == 200 else None


def token_count_routes(counter: TokenCounter, access: Access) -> list[HTTPRouteHandler]:
    """The route, with errors in the form of its clients."""

    @post(
        "/v1/messages/count_tokens",
        summary="Count a request's input tokens",
        tags=["messages"],
        status_code=200,
    )
    async def count_tokens(request: Request[Any, Any, Any]) -> Response[bytes]:
        request_id = request.headers.get("x-request-id", "")
        headers = {
            name: value
            for name in ("anthropic-version", "anthropic-beta")
            if (value := request.headers.get(name)) is not None
        }
        try:
            principal = (await access.identify(request)).principal
            policy, team = NO_POLICY, ""
            if principal is not None:
                policy, team = principal.policy, principal.team_id
            body = await counter.count(policy, team, await request.body(), headers, request_id)
        except GatewayError as error:
            text = messages_error_body(error.status, error.detail, request_id)
            return Response(
                text,
                status_code=messages_status(error.status),
                media_type="application/json",
                headers=error.headers,
            )
        return Response(body, media_type="application/json")

    return [count_tokens]
