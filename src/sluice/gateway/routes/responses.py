"""`/v1/responses/{id}`: stored responses, of the caller's own team."""

from __future__ import annotations

from typing import Any

from litestar import Request, delete, get
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.responses import ResponseStore, StoreAway, Turn
from sluice.gateway.routes.access import Access


def response_routes(store: ResponseStore, access: Access) -> list[HTTPRouteHandler]:
    """Retrieve, list the input of, and delete."""

    async def team(request: Request[Any, Any, Any]) -> str:
        principal = (await access.identify(request)).principal
        if principal is None:
            raise GatewayError.forbidden("Responses belong to teams; use a team's key.")
        return principal.team_id

    async def found(team_id: str, response_id: str) -> Turn:
        try:
            turn = await store.get(team_id, response_id)
        except StoreAway:
            raise GatewayError.store_away() from None
        if turn is None:
            raise _unknown(response_id)
        return turn

    @get("/v1/responses/{response_id:str}", summary="Retrieve a response", tags=["responses"])
    async def retrieve(request: Request[Any, Any, Any], response_id: str) -> dict[str, Any]:
        return (await found(await team(request), response_id)).response

    @get(
        "/v1/responses/{response_id:str}/input_items",
        summary="List a response's input",
        tags=["responses"],
    )
    async def list_input(request: Request[Any, Any, Any], response_id: str) -> dict[str, Any]:
        items = (await found(await team(request), response_id)).input
        return {
            "object": "list",
            "data": items,
            "has_more": False,
            "first_id": items[0].get("id") if items else None,
            "last_id": items[-1].get("id") if items else None,
        }

    @delete(
        "/v1/responses/{response_id:str}",
        summary="Forget a response",
        status_code=200,
        tags=["responses"],
    )
    async def forget(request: Request[Any, Any, Any], response_id: str) -> dict[str, Any]:
        try:
            known = await store.delete(await team(request), response_id)
        except StoreAway:
            raise GatewayError.store_away() from None
        if not known:
            raise _unknown(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    return [retrieve, list_input, forget]


def _unknown(response_id: str) -> GatewayError:
    return GatewayError.not_found(f"Response with id '{response_id}' not found.")
