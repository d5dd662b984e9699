"""`/admin/pools`: how the pools are, and replicas taken out of them and back in."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import asyncpg
import msgspec
from litestar import Request, get, post
from redis.exceptions import RedisError

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.admin.callers import by, caller
from sluice.gateway.tenancy.audit import record
from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.gateway.tenancy.transactions import change
from sluice.router.pool.pools import Pools
from sluice.router.pool.snapshot import PoolSnapshot

_REPLICA = "/pools/{name:str}/replicas/{replica:str}"


class ReplicaDrain(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a replica is taken out, as the audit log has it.

    Attributes:
        id: made of the names, since replicas come and go without records of their own.
    """

    id: UUID
    pool: str
    replica: str
    drained: bool

    @property
    def place(self) -> Place:
        """Pools are everybody's."""
        return INSTALLATION


def pool_routes(pools: Pools, database: asyncpg.Pool) -> list[Any]:
    """List, get, drain and undrain."""

    @get("/pools", summary="The pools, as this gateway sees them", permission="models:read")
    async def list_pools(request: Request[Any, Any, Any]) -> dict[str, list[PoolSnapshot]]:
        _of_the_installation(request)
        return {"data": pools.snapshots()}

    @get("/pools/{name:str}", summary="A pool with its replicas", permission="models:read")
    async def get_pool(request: Request[Any, Any, Any], name: str) -> PoolSnapshot:
        _of_the_installation(request)
        found = pools.snapshot(name)
        if found is None:
            raise GatewayError.not_found(f"There is no pool `{name}`.")
        return found

    @post(
        f"{_REPLICA}/drain",
        summary="Give a replica no more requests, at every gateway",
        status_code=200,
        permission="models:write",
    )
    async def drain(request: Request[Any, Any, Any], name: str, replica: str) -> ReplicaDrain:
        return await turn(request, name, replica, drained=True)

    @post(
        f"{_REPLICA}/undrain",
        summary="Let a replica take requests again",
        status_code=200,
        permission="models:write",
    )
    async def undrain(request: Request[Any, Any, Any], name: str, replica: str) -> ReplicaDrain:
        return await turn(request, name, replica, drained=False)

    async def turn(
        request: Request[Any, Any, Any], name: str, replica: str, drained: bool
    ) -> ReplicaDrain:
        _of_the_installation(request)
        made = ReplicaDrain(
            id=uuid5(NAMESPACE_URL, f"{name}/{replica}"),
            pool=name,
            replica=replica,
            drained=drained,
        )
        async with change(database) as connection:
            await record(
                connection, by(request), "replica", "drain" if drained else "undrain", None, made
            )
            try:  # what fails here leaves no entry either
                await pools.drain(name, replica, drained)
            except KeyError:
                raise GatewayError.not_found("There is no such pool or replica.") from None
            except RedisError:
                raise GatewayError.counters_away() from None
        return made

    return [list_pools, get_pool, drain, undrain]


def _of_the_installation(request: Request[Any, Any, Any]) -> None:
    """Raises:
    GatewayError: 403, the caller is confined to an organisation; pools are everybody's.
    """
    if not caller(request).covers(INSTALLATION):
        raise GatewayError.forbidden("Pools are for administrators of the installation.")
