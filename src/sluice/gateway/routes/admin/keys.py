"""`/admin/keys`, and `/admin/teams/{team}/keys`, where they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post

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
from sluice.gateway.routes.admin.bodies import read, read_patch, refusals
from sluice.gateway.routes.admin.callers import by, caller, identified, named_team
from sluice.gateway.tenancy.keys import Key, KeyMembers, Keys
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.teams import Teams

MAX_OVERLAP_SECONDS = 30 * 24 * 3600

_PATH = "/keys/{key_id:str}"


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /admin/keys/{id}/rotate`: for how long the old key still works."""

    overlap_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_OVERLAP_SECONDS)] = 0


def key_routes(keys: Keys, teams: Teams) -> list[Any]:
    """Create, list, get, change, revoke and rotate."""

    @post("/teams/{team:str}/keys", summary="Create a key", permission="keys:write")
    async def create_key(request: Request[Any, Any, Any], team: str) -> Response[dict[str, Any]]:
        owner = await named_team(request, teams, team)
        new = await read(request, KeyMembers)
        with refusals():
            record, key = await keys.create(owner.id, new, by(request))
        return shown_once(request, record, "key", key)

    @get("/keys", summary="List keys, of one team or all", permission="keys:read")
    async def list_keys(
        request: Request[Any, Any, Any],
        team_id: str | None = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[Key]:
        within, team = confines(caller(request))
        if team_id is not None:
            team = (await named_team(request, teams, team_id, "team_id")).id
        return await keys.page(within, team, turn(limit, cursor))

    @get(_PATH, summary="A key's record", permission="keys:read")
    async def get_key(request: Request[Any, Any, Any], key_id: str) -> Response[Key | None]:
        return answer_unless_known(request, await identified(request, keys.find, key_id, "key"))

    @patch(_PATH, summary="Change a key", permission="keys:write")
    async def update_key(request: Request[Any, Any, Any], key_id: str) -> Response[Key]:
        found = await identified(request, keys.find, key_id, "key")
        changes, match = await read_patch(request), if_match(request)
        with refusals():
            return answer(request, await keys.update(found.id, changes, match, by(request)))

    @delete(_PATH, summary="Revoke a key", status_code=200, permission="keys:write")
    async def revoke_key(request: Request[Any, Any, Any], key_id: str) -> Response[Key]:
        found = await identified(request, keys.find, key_id, "key")
        with refusals():
            return answer(request, await keys.revoke(found.id, if_match(request), by(request)))

    @post(f"{_PATH}/rotate", summary="Replace a key, with an overlap", permission="keys:write")
    async def rotate_key(request: Request[Any, Any, Any], key_id: str) -> Response[dict[str, Any]]:
        found = await identified(request, keys.find, key_id, "key")
        overlap = timedelta(seconds=(await read(request, Rotation)).overlap_seconds)
        with refusals():
            record, key = await keys.rotate(found.id, overlap, by(request))
        return shown_once(request, record, "key", key)

    return [create_key, list_keys, get_key, update_key, revoke_key, rotate_key]
