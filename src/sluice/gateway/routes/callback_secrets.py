"""`/v1/callback_secret`: what a team verifies the signatures of its batches' callbacks with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler

from sluice.gateway.batch.callback_secrets import CallbackSecrets
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access


@dataclass(frozen=True, slots=True)
class CallbackSecret:
    """A team's secret, in the form that libraries of Standard Webhooks take."""

    secret: str
    object: Literal["callback_secret"] = "callback_secret"


def callback_secret_routes(secrets: CallbackSecrets, access: Access) -> list[HTTPRouteHandler]:
    """A team's key reads its own team's secret and rotates it."""

    async def team_of(request: Request[Any, Any, Any]) -> UUID:
        principal = (await access.identify(request)).principal
        if principal is None:
            raise GatewayError.forbidden("Callback secrets are a team's; use a team's key.")
        return UUID(principal.team_id)

    @get(
        "/v1/callback_secret",
        summary="The secret that signs the team's callbacks",
        tags=["batches"],
    )
    async def read(request: Request[Any, Any, Any]) -> CallbackSecret:
        return CallbackSecret(await secrets.current(await team_of(request)))

    @post(
        "/v1/callback_secret/rotate",
        summary="A new secret for the team's callbacks; the old one signs along for 24 hours",
        tags=["batches"],
        status_code=200,
    )
    async def rotate(request: Request[Any, Any, Any]) -> CallbackSecret:
        team_id = await team_of(request)
        return CallbackSecret(await secrets.rotate(team_id, datetime.now(UTC)))

    return [read, rotate]
