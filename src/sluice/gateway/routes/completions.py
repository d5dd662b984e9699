"""The data plane: all that goes through the pipeline, as raw ASGI endpoints."""

from __future__ import annotations

from typing import Any, cast

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from sluice.backends.base import Endpoint
from sluice.gateway.exchange import Exchange
from sluice.gateway.pipeline import Pipeline

SERVED = (
    Endpoint.CHAT,
    Endpoint.COMPLETIONS,
    Endpoint.EMBEDDINGS,
    Endpoint.MESSAGES,
    Endpoint.MODERATIONS,
    Endpoint.RESPONSES,
)


def completion_routes(pipeline: Pipeline) -> list[ASGIRouteHandler]:
    """One route for each operation of the data plane."""
    return [_route(pipeline, endpoint) for endpoint in SERVED]


def _route(pipeline: Pipeline, endpoint: Endpoint) -> ASGIRouteHandler:
    @asgi(f"/v1/{endpoint.value}", copy_scope=False)
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        asgi_scope = cast("dict[str, Any]", scope)
        await pipeline(Exchange(endpoint, asgi_scope, receive, cast("Any", send)))

    return serve
