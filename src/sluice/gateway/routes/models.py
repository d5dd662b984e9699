"""`GET /v1/models`: what may be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access, Caller
from sluice.router.auto.documents import AutoPolicy, split_mode
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Model


def model_routes(catalog: Catalog, table: RoutingTable, access: Access) -> list[HTTPRouteHandler]:
    """The list and the single model, in a form that the OpenAI and Anthropic SDKs both read. The
    `auto` aliases of the caller's team are among them."""

    def there(caller: Caller) -> Iterator[Model]:
        team = None if caller.principal is None else caller.principal.team_id
        yield from catalog.models()
        for alias, policy in table.autos(team).items():
            if catalog.get(alias) is None and (model := _as_model(alias, policy, catalog)):
                yield model

    @get("/v1/models", summary="List models", tags=["models"])
    async def list_models(request: Request[Any, Any, Any]) -> dict[str, Any]:
        caller = await access.identify(request)
        data = [
            _body(model, catalog.created) for model in there(caller) if _may_use(caller, model.name)
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
        asked = name.removeprefix("/")
        named = {model.name: model for model in there(caller)}
        alias, mode = split_mode(asked)
        model = named.get(asked)
        if model is None and mode is not None and catalog.get(alias) is None:
            model = named.get(alias)
        if model is None or not _may_use(caller, model.name):
            raise GatewayError.invalid(
                "The model does not exist", "model", "model_not_found", status=404
            )
        return _body(replace(model, name=asked), catalog.created)

    return [list_models, get_model]


def _as_model(alias: str, policy: AutoPolicy, catalog: Catalog) -> Model | None:
    """An alias as if it were a model: what any of its models can do, it can; None where it has
    none that is there."""
    models = [model for name in policy.models() if (model := catalog.get(name)) is not None]
    if not models:
        return None
    return Model(
        name=alias,
        context_length=max(model.context_length for model in models),
        capabilities=frozenset[Any]().union(*(model.capabilities for model in models)),
        tiers=frozenset[Any]().union(*(model.tiers for model in models)),
        deployments=(),
    )


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
