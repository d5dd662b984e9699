"""`GET /v1/models`: what may be asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access, Caller
from sluice.router.catalog import Catalog, Model


def model_routes(catalog: Catalog, access: Access) -> list[HTTPRouteHandler]:
    """The list and the single model, in a form that the OpenAI and Anthropic SDKs both read."""

    @get("/v1/models", summary="List models", tags=["models"])
    async def list_models(request: Request[Any, Any, Any]) -> dict[str, Any]:
        caller = await access.identify(request)
        data = [
            _body(model, catalog.created)
            for model in catalog.models()
            if _may_use(caller, model.name)
        ]
        return {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }

    @get("/v1/models/{name:path}", summary="Retrieve a model", tags=["models"])
    async def get_model(request: Request[Any, Any, Any], name: str) -> dict[str, Any]:
        caller = await access.identify(request)
        model = catalog.get(name.removeprefix("/"))
        if model is None or not _may_use(caller, model.name):
            raise GatewayError.invalid(
                "The model does not exist", "model", "model_not_found", status=404
            )
        return _body(model, catalog.created)

    return [list_models, get_model]


def _may_use(caller: Caller, name: str) -> bool:
    """A key's limits say which models are there for it; administrators see all."""
    return caller.principal is None or caller.principal.policy.allows_model(name)


def _body(model: Model, created: int) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": model.owned_by,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "context_length": model.context_length,
        "capabilities": sorted(model.capabilities),
    }
