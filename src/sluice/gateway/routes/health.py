"""Liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CONTENT_TYPE_LATEST

#: A check gives None when all is well, else what is wrong.
Check = Callable[[], Awaitable[str | None]]


def health_routes(
    checks: Mapping[str, Check], required: frozenset[str], render_metrics: Callable[[], bytes]
) -> list[HTTPRouteHandler]:
    """Args:
    checks: by the name of the dependency.
    required: dependencies without which no request can be served; others degrade only.
    render_metrics: the Prometheus exposition.
    """

    @get("/health/live", summary="The process answers", tags=["operations"])
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @get("/health/ready", summary="Each dependency, by name", tags=["operations"])
    async def ready() -> Response[dict[str, Any]]:
        faults = {name: await check() for name, check in checks.items()}
        down = {name for name, fault in faults.items() if fault is not None}
        status = "unavailable" if down & required else "degraded" if down else "ok"
        body = {
            "status": status,
            "checks": {name: fault or "ok" for name, fault in faults.items()},
        }
        return Response(body, status_code=503 if down & required else 200)

    @get("/metrics", media_type=MediaType.TEXT, include_in_schema=False)
    async def metrics() -> Response[bytes]:
        return Response(render_metrics(), media_type=CONTENT_TYPE_LATEST)

    return [live, ready, metrics]
