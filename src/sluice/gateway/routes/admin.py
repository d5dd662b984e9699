"""`/admin`: teams and keys, for administrators."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from litestar import Request, Router, delete, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access
from sluice.gateway.tenancy.limits import Limits
from sluice.gateway.tenancy.registry import Conflict, Key, Missing, Team, Tenancy

T = TypeVar("T")

MAX_OVERLAP_SECONDS = 30 * 24 * 3600


class NewTeam(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /admin/teams`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$(?!\n)")]
    default_max_tokens: Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)] | None = None


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /admin/teams/{team}/keys`."""

    name: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")] = ""
    expires_at: datetime | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /admin/keys/{id}/rotate`: for how long the old key still works."""

    overlap_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_OVERLAP_SECONDS)] = 0


def _shown_once(record: Key, key: str) -> dict[str, Any]:
    """A new key's record with the key itself, which is shown here and nowhere else, ever."""
    return {**asdict(record), "key": key}


def admin_router(tenancy: Tenancy, access: Access) -> Router:
    """The admin API."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        access.admin(connection)

    return Router(
        path="/admin",
        route_handlers=[*_team_routes(tenancy), *_key_routes(tenancy)],
        guards=[guard],
        tags=["admin"],
    )


def _team_routes(tenancy: Tenancy) -> list[Any]:
    @post("/teams", summary="Create a team")
    async def create_team(request: Request[Any, Any, Any]) -> Team:
        body = await _body(request, NewTeam)
        try:
            return await tenancy.create_team(
                body.name, Limits(default_max_tokens=body.default_max_tokens)
            )
        except Conflict as error:
            raise _conflict(error, "name") from None

    @get("/teams", summary="List teams")
    async def list_teams() -> dict[str, list[Team]]:
        return {"data": await tenancy.list_teams()}

    @get("/teams/{team:str}", summary="A team by id or name")
    async def get_team(team: str) -> Team:
        return await _team(tenancy, team)

    return [create_team, list_teams, get_team]


def _key_routes(tenancy: Tenancy) -> list[Any]:
    @post("/teams/{team:str}/keys", summary="Create a key")
    async def create_key(request: Request[Any, Any, Any], team: str) -> dict[str, Any]:
        body = await _body(request, NewKey)
        expires_at = _in_utc(body.expires_at)
        owner = await _team(tenancy, team)
        record, key = await tenancy.create_key(owner.id, body.name, expires_at)
        return _shown_once(record, key)

    @get("/keys", summary="List keys, of one team or all")
    async def list_keys(team_id: str | None = None) -> dict[str, list[Key]]:
        team = None if team_id is None else (await _team(tenancy, team_id)).id
        return {"data": await tenancy.list_keys(team)}

    @delete("/keys/{key_id:str}", summary="Revoke a key", status_code=200)
    async def revoke_key(key_id: str) -> Key:
        try:
            return await tenancy.revoke_key(_key_id(key_id))
        except Missing:
            raise _no_key() from None

    @post("/keys/{key_id:str}/rotate", summary="Replace a key, with an overlap")
    async def rotate_key(request: Request[Any, Any, Any], key_id: str) -> dict[str, Any]:
        body = await _body(request, Rotation)
        overlap = timedelta(seconds=body.overlap_seconds)
        try:
            record, key = await tenancy.rotate_key(_key_id(key_id), overlap)
        except Missing:
            raise _no_key() from None
        except Conflict as error:
            raise _conflict(error, None) from None
        return _shown_once(record, key)

    return [create_key, list_keys, revoke_key, rotate_key]


async def _body(request: Request[Any, Any, Any], kind: type[T]) -> T:
    """The body as a type; an empty body is an empty object."""
    text = await request.body()
    try:
        return msgspec.json.decode(text or b"{}", type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        param = path.removesuffix("`") or None
        if param is None and "`" in message:  # unknown and missing fields are named in the text
            param = message.split("`")[-2]
        raise GatewayError.invalid(f"{message}.", param, "invalid_value") from None
    except msgspec.DecodeError as error:
        raise GatewayError.invalid(f"The body is not JSON: {error}", code="invalid_json") from None


def _in_utc(time: datetime | None) -> datetime | None:
    """A time of a body's; without an offset it is UTC."""
    if time is None or time.tzinfo is None:
        return time and time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise GatewayError.invalid(
            "`expires_at` is out of range.", "expires_at", "invalid_value"
        ) from None


async def _team(tenancy: Tenancy, id_or_name: str) -> Team:
    try:
        return await tenancy.find_team(id_or_name)
    except Missing as error:
        raise GatewayError.not_found(f"{error}.") from None


def _key_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _no_key() from None


def _no_key() -> GatewayError:
    return GatewayError.not_found("There is no such key.")


def _conflict(error: Conflict, param: str | None) -> GatewayError:
    return GatewayError.invalid(f"{error}.", param, "conflict", 409)
