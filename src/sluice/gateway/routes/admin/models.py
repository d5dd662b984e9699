"""`/admin/models`: versions of one's own models, and which of them serve."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import asyncpg
from litestar import Request, Response, get, patch, post

from sluice.gateway.errors import GatewayError
from sluice.gateway.registry.stages import Promotion
from sluice.gateway.registry.store import Registry
from sluice.gateway.registry.versions import ModelVersion, NewVersion
from sluice.gateway.routes.admin.answers import (
    Cursor,
    Limit,
    answer,
    answer_unless_known,
    if_match,
    turn,
)
from sluice.gateway.routes.admin.bodies import read, read_patch, refusals
from sluice.gateway.routes.admin.callers import by, caller
from sluice.gateway.tenancy.audit import By, record
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.refusals import Conflict
from sluice.gateway.tenancy.roles import INSTALLATION
from sluice.gateway.tenancy.transactions import Connection

#: Largest registration: its manifest may name thousands of files.
MAX_REGISTRATION_BYTES = 1024 * 1024

_PATH = "/models/{name:str}/versions/{version:str}"


@dataclass(frozen=True, slots=True)
class Configured:
    """What this gateway's configuration says of models.

    Attributes:
        models: names of models, which no registered model may have.
        pools: names of providers with vLLM replicas, which registered versions are served from.
    """

    models: Collection[str]
    pools: Collection[str]


def model_registry(pool: asyncpg.Pool) -> Registry[By]:
    """The registry over a database, with its changes in the audit log."""
    return Registry(pool, _journal)


async def _journal(
    connection: Connection,
    by: By,
    verb: str,
    before: ModelVersion | None,
    after: ModelVersion,
) -> None:
    await record(connection, by, "model", verb, before, after)


def model_registry_routes(registry: Registry[By], configured: Configured) -> list[Any]:
    """Register, list, get, change, promote and retire."""

    def check_name(name: str) -> None:
        if name in configured.models:
            raise Conflict(f"the configuration has a model `{name}`, which would win", "name")

    @post(
        "/models",
        summary="Register a version of a model; it serves nobody yet",
        permission="models:write",
        request_max_body_size=MAX_REGISTRATION_BYTES,
    )
    async def create_version(request: Request[Any, Any, Any]) -> Response[ModelVersion]:
        _of_the_installation(request)
        new = await read(request, NewVersion)
        with refusals():
            check_name(new.name)
            return answer(request, await registry.create(new, by(request)), 201)

    @get("/models", summary="List versions, of one model or all", permission="models:read")
    async def list_versions(
        request: Request[Any, Any, Any],
        name: str | None = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[ModelVersion]:
        _of_the_installation(request)
        return await registry.page(name, turn(limit, cursor))

    @get(_PATH, summary="A version by name, or by its stage", permission="models:read")
    async def get_version(
        request: Request[Any, Any, Any], name: str, version: str
    ) -> Response[ModelVersion | None]:
        _of_the_installation(request)
        with refusals():
            return answer_unless_known(request, await registry.find(name, version))

    @patch(_PATH, summary="Change a version's terms", permission="models:write")
    async def update_version(
        request: Request[Any, Any, Any], name: str, version: str
    ) -> Response[ModelVersion]:
        _of_the_installation(request)
        changes, match = await read_patch(request), if_match(request)
        with refusals():
            changed = await registry.update(name, version, changes, match, by(request))
        return answer(request, changed)

    @post(
        f"{_PATH}/promote",
        summary="Bring a version into a stage; who is in it leaves",
        status_code=200,
        permission="models:write",
    )
    async def promote_version(
        request: Request[Any, Any, Any], name: str, version: str
    ) -> Response[ModelVersion]:
        _of_the_installation(request)
        to, match = await read(request, Promotion), if_match(request)
        with refusals():
            check_name(name)
            pool = (await registry.find(name, version)).pool
            if pool not in configured.pools:
                raise Conflict(f"the configuration has no vLLM provider `{pool}`", "pool")
            moved = await registry.promote(name, version, to, match, by(request))
        return answer(request, moved)

    @post(
        f"{_PATH}/retire",
        summary="Take a version out of its stage",
        status_code=200,
        permission="models:write",
    )
    async def retire_version(
        request: Request[Any, Any, Any], name: str, version: str
    ) -> Response[ModelVersion]:
        _of_the_installation(request)
        with refusals():
            moved = await registry.retire(name, version, if_match(request), by(request))
        return answer(request, moved)

    return [
        create_version,
        list_versions,
        get_version,
        update_version,
        promote_version,
        retire_version,
    ]


def _of_the_installation(request: Request[Any, Any, Any]) -> None:
    """Raises:
    GatewayError: 403, the caller is confined to an organisation; models are everybody's.
    """
    if not caller(request).covers(INSTALLATION):
        raise GatewayError.forbidden("Models are for administrators of the installation.")
