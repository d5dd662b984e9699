"""`GET /admin/audit`."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from litestar import Request, get
from litestar.params import Parameter

from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import confines
from sluice.gateway.routes.admin.answers import Cursor, Limit, turn
from sluice.gateway.routes.admin.callers import caller, named_organisation, named_team
from sluice.gateway.routes.times import time_parameter
from sluice.gateway.tenancy.audit import AuditLog, Entry, Filters
from sluice.gateway.tenancy.organisations import Organisations
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.records import as_uuid
from sluice.gateway.tenancy.teams import Teams


def audit_routes(log: AuditLog, organisations: Organisations, teams: Teams) -> list[Any]:
    """List; entries are made by changes, and there is no other way to."""

    @get("/audit", summary="Who changed what, newest first", permission="audit:read")
    async def list_changes(
        request: Request[Any, Any, Any],
        actor: str | None = None,
        action: str | None = None,
        object_type: str | None = None,
        object_id: str | None = None,
        organisation: str | None = None,
        team: str | None = None,
        start: Annotated[str | None, Parameter(query="from")] = None,
        end: Annotated[str | None, Parameter(query="to")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[Entry]:
        organisation_id, team_id = confines(caller(request))
        if organisation is not None:
            organisation_id = (
                await named_organisation(request, organisations, organisation, "organisation")
            ).id
        if team is not None:
            team_id = (await named_team(request, teams, team, "team")).id
        filters = Filters(
            actor=_text(actor, "actor"),
            action=_text(action, "action"),
            object_type=_text(object_type, "object_type"),
            object_id=_id(object_id, "object_id"),
            organisation_id=organisation_id,
            team_id=team_id,
            start=time_parameter(start, "from"),
            end=time_parameter(end, "to"),
        )
        return await log.page(filters, turn(limit, cursor))

    return [list_changes]


def _text(given: str | None, param: str) -> str | None:
    if given is not None and "\0" in given:  # which no text of Postgres's holds
        raise GatewayError.invalid(f"`{param}` must not hold NUL.", param, "invalid_value")
    return given


def _id(given: str | None, param: str) -> UUID | None:
    if given is None:
        return None
    known = as_uuid(given)
    if known is None:
        raise GatewayError.invalid(f"`{param}` must be a UUID.", param, "invalid_value")
    return known
