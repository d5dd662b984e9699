"""`/admin/tokens`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import confines
from sluice.gateway.routes.admin.answers import (
    Cursor,
    Limit,
    answer,
    answer_unless_known,
    if_match,
    shown_once,
    turn,
)
from sluice.gateway.routes.admin.bodies import read, refusals
from sluice.gateway.routes.admin.callers import (
    by,
    caller,
    identified,
    named_organisation,
    named_team,
)
from sluice.gateway.tenancy.organisations import Organisations
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.records import in_utc
from sluice.gateway.tenancy.roles import Administrator, Place, may_grant
from sluice.gateway.tenancy.teams import Teams
from sluice.gateway.tenancy.tokens import NewToken, Token, Tokens

_PATH = "/tokens/{token_id:str}"


def token_routes(tokens: Tokens, organisations: Organisations, teams: Teams) -> list[Any]:
    """Create, list, get and revoke."""

    async def place_of(request: Request[Any, Any, Any], new: NewToken) -> Place:
        """What a new token is confined to: what is named, else what its maker is confined to."""
        maker = caller(request)
        place = Place(maker.organisation_id, maker.team_id)
        if new.organisation is not None:
            place = (
                await named_organisation(request, organisations, new.organisation, "organisation")
            ).place
        if new.team is not None:
            team = (await named_team(request, teams, new.team, "team")).place
            if new.organisation is not None and team.organisation_id != place.organisation_id:
                raise GatewayError.invalid(
                    "`team` is not of that `organisation`.", "team", "invalid_value"
                )
            place = team
        return place

    @post("/tokens", summary="Create an admin token", permission="tokens:write")
    async def create_token(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        new = await read(request, NewToken)
        place = await place_of(request, new)
        maker = caller(request)
        if new.expires_at is None:  # no longer than its maker
            new = msgspec.structs.replace(new, expires_at=maker.valid_until)
        given = Administrator(
            "token",
            new.name,
            new.role,
            place.organisation_id,
            place.team_id,
            None if new.scopes is None else frozenset[str](new.scopes),
            in_utc(new.expires_at),
        )
        if not may_grant(maker, given):
            raise GatewayError.forbidden(
                "The token would be allowed what its maker is not.", "role"
            )
        record, token = await tokens.create(new, place, by(request))
        return shown_once(request, record, "token", token)

    @get("/tokens", summary="List admin tokens", permission="tokens:read")
    async def list_tokens(
        request: Request[Any, Any, Any], limit: Limit = 100, cursor: Cursor = None
    ) -> Page[Token]:
        return await tokens.page(*confines(caller(request)), turn(limit, cursor))

    @get(_PATH, summary="A token's record", permission="tokens:read")
    async def get_token(request: Request[Any, Any, Any], token_id: str) -> Response[Token | None]:
        found = await identified(request, tokens.find, token_id, "token")
        return answer_unless_known(request, found)

    @delete(_PATH, summary="Revoke a token", status_code=200, permission="tokens:write")
    async def revoke_token(request: Request[Any, Any, Any], token_id: str) -> Response[Token]:
        found = await identified(request, tokens.find, token_id, "token")
        with refusals():
            return answer(request, await tokens.revoke(found.id, if_match(request), by(request)))

    return [create_token, list_tokens, get_token, revoke_token]
