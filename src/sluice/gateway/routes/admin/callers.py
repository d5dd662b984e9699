"""Who makes an admin call, in which request, and what of the installation is there for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from uuid import UUID

import uuid_utils.compat
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from sluice.gateway.errors import GatewayError
from sluice.gateway.tenancy.audit import By
from sluice.gateway.tenancy.organisations import Organisation, Organisations
from sluice.gateway.tenancy.records import as_uuid
from sluice.gateway.tenancy.refusals import Missing
from sluice.gateway.tenancy.roles import Administrator, Place
from sluice.gateway.tenancy.teams import Team, Teams


class Placed(Protocol):
    """Something that is somewhere."""

    @property
    def place(self) -> Place:
        """Where it is."""


P = TypeVar("P", bound=Placed)

_ADMINISTRATOR, _REQUEST_ID = "administrator", "request_id"

#: Where a handler's declaration says what it needs.
PERMISSION = "permission"


def admit(
    connection: ASGIConnection[Any, Any, Any, Any],
    administrator: Administrator,
    handler: BaseRouteHandler,
) -> None:
    """Let an administrator pass that has the handler's permission; the request gets its id.

    Raises:
        GatewayError: 403, it has not.
    """
    permission = handler.opt.get(PERMISSION)
    if permission not in administrator.permissions:
        raise GatewayError.forbidden(f"This needs the permission `{permission}`.")
    connection.state[_ADMINISTRATOR] = administrator
    connection.state[_REQUEST_ID] = uuid_utils.compat.uuid7()


def caller(request: Request[Any, Any, Any]) -> Administrator:
    """Who calls."""
    known: Administrator = request.state[_ADMINISTRATOR]
    return known


def request_id(request: Request[Any, Any, Any]) -> UUID:
    """The id of the answer."""
    known: UUID = request.state[_REQUEST_ID]
    return known


def by(request: Request[Any, Any, Any]) -> By:
    """The caller, as the audit log names them."""
    administrator = caller(request)
    return By(administrator.actor, administrator.name, request_id(request))


async def named_organisation(
    request: Request[Any, Any, Any],
    organisations: Organisations,
    id_or_name: str,
    param: str | None = None,
) -> Organisation:
    """An organisation that is there for the caller, by id or name.

    Raises:
        GatewayError: 404, there is none; with the parameter that names it.
    """
    found = None
    with suppress(Missing):
        found = await organisations.find(id_or_name)
    if found is None or not caller(request).covers(found.place):
        raise _nothing(f"organisation `{id_or_name}`", param)
    return found


async def named_team(
    request: Request[Any, Any, Any], teams: Teams, id_or_name: str, param: str | None = None
) -> Team:
    """A team that is there for the caller, by id or name.

    Raises:
        GatewayError: 404, there is none; with the parameter that names it.
    """
    found = None
    with suppress(Missing):
        found = await teams.find(id_or_name)
    if found is None or not caller(request).covers(found.place):
        raise _nothing(f"team `{id_or_name}`", param)
    return found


async def identified(
    request: Request[Any, Any, Any], find: Callable[[UUID], Awaitable[P]], text: str, what: str
) -> P:
    """Something else that is there for the caller, by its id.

    Raises:
        GatewayError: 404, there is none.
    """
    found = None
    known_id = as_uuid(text)
    if known_id is not None:
        with suppress(Missing):
            found = await find(known_id)
    if found is None or not caller(request).covers(found.place):
        raise _nothing(f"such {what}", None)
    return found


def _nothing(what: str, param: str | None) -> GatewayError:
    return GatewayError.invalid(f"There is no {what}.", param, "not_found", 404)
