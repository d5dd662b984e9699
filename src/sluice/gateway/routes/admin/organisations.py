"""`/admin/organisations`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, delete, get, patch, post

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import confines
from sluice.gateway.routes.admin.answers import (
    Cursor,
    Limit,
    answer,
    answer_unless_known,
    if_match,
    turn,
)
from sluice.gateway.routes.admin.bodies import read, read_patch, refusals
from sluice.gateway.routes.admin.callers import by, caller, named_organisation
from sluice.gateway.tenancy.organisations import NewOrganisation, Organisation, Organisations
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.roles import INSTALLATION

_PATH = "/organisations/{organisation:str}"


def organisation_routes(organisations: Organisations) -> list[Any]:
    """Create, list, get, change and archive."""

    @post("/organisations", summary="Create an organisation", permission="organisations:write")
    async def create_organisation(request: Request[Any, Any, Any]) -> Response[Organisation]:
        if not caller(request).covers(INSTALLATION):
            raise GatewayError.forbidden("Only administrators of the installation create them.")
        new = await read(request, NewOrganisation)
        with refusals():
            return answer(request, await organisations.create(new, by(request)), 201)

    @get("/organisations", summary="List organisations", permission="organisations:read")
    async def list_organisations(
        request: Request[Any, Any, Any], limit: Limit = 100, cursor: Cursor = None
    ) -> Page[Organisation]:
        within, _ = confines(caller(request))
        return await organisations.page(within, turn(limit, cursor))

    @get(_PATH, summary="An organisation by id or name", permission="organisations:read")
    async def get_organisation(
        request: Request[Any, Any, Any], organisation: str
    ) -> Response[Organisation | None]:
        found = await named_organisation(request, organisations, organisation)
        return answer_unless_known(request, found)

    @patch(_PATH, summary="Change an organisation", permission="organisations:write")
    async def update_organisation(
        request: Request[Any, Any, Any], organisation: str
    ) -> Response[Organisation]:
        found = await named_organisation(request, organisations, organisation)
        changes, match = await read_patch(request), if_match(request)
        with refusals():
            return answer(
                request, await organisations.update(found.id, changes, match, by(request))
            )

    @delete(
        _PATH,
        summary="Archive an organisation that has no teams left",
        status_code=200,
        permission="organisations:write",
    )
    async def archive_organisation(
        request: Request[Any, Any, Any], organisation: str
    ) -> Response[Organisation]:
        found = await named_organisation(request, organisations, organisation)
        with refusals():
            archived = await organisations.archive(found.id, if_match(request), by(request))
        return answer(request, archived)

    return [
        create_organisation,
        list_organisations,
        get_organisation,
        update_organisation,
        archive_organisation,
    ]
