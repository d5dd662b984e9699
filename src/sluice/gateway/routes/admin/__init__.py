"""`/admin`: organisations, teams, keys, tokens, models, pools, the audit log; for administrators.

Each route names the permission that it needs; one that names none is closed to everybody.
"""

from __future__ import annotations

from typing import Any

import asyncpg
from litestar import Router
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from sluice.gateway.learning.models import RouterModels
from sluice.gateway.routes.access import Access
from sluice.gateway.routes.admin.audit import audit_routes
from sluice.gateway.routes.admin.bodies import MAX_BODY_BYTES
from sluice.gateway.routes.admin.callers import admit
from sluice.gateway.routes.admin.keys import key_routes
from sluice.gateway.routes.admin.models import Configured, model_registry, model_registry_routes
from sluice.gateway.routes.admin.organisations import organisation_routes
from sluice.gateway.routes.admin.pools import pool_routes
from sluice.gateway.routes.admin.router_models import router_model_routes
from sluice.gateway.routes.admin.routing import Routing, routing_routes
from sluice.gateway.routes.admin.teams import team_routes
from sluice.gateway.routes.admin.tokens import token_routes
from sluice.gateway.tenancy.audit import AuditLog
from sluice.gateway.tenancy.keys import Keys
from sluice.gateway.tenancy.organisations import Organisations
from sluice.gateway.tenancy.teams import Teams
from sluice.gateway.tenancy.tokens import Tokens
from sluice.router.pool.pools import Pools


def admin_router(
    pool: asyncpg.Pool, access: Access, configured: Configured, pools: Pools, routing: Routing
) -> Router:
    """The admin API over a database."""
    organisations, teams = Organisations(pool), Teams(pool)

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        admit(connection, await access.administrator(connection), handler)

    return Router(
        path="/admin",
        route_handlers=[
            *organisation_routes(organisations),
            *team_routes(teams, organisations),
            *key_routes(Keys(pool), teams),
            *token_routes(Tokens(pool), organisations, teams),
            *model_registry_routes(model_registry(pool), configured),
            *pool_routes(pools, pool),
            *routing_routes(routing, teams),
            *router_model_routes(RouterModels(pool)),
            *audit_routes(AuditLog(pool), organisations, teams),
        ],
        guards=[guard],
        tags=["admin"],
        request_max_body_size=MAX_BODY_BYTES,
    )
