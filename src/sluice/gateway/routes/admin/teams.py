"""`/admin/teams`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, delete, get, patch, post

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
from sluice.gateway.routes.admin.callers import by, caller, named_organisation, named_team
from sluice.gateway.tenancy.organisations import DEFAULT_ORGANISATION, Organisations
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.teams import Team, TeamMembers, Teams

_PATH = "/teams/{team:str}"


class NewTeam(TeamMembers, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /admin/teams`.

    Attributes:
        organisation: id or name; by default the one that the caller is confined to, else the
            installation's default one.
    """

    organisation: str | None = None


def team_routes(teams: Teams, organisations: Organisations) -> list[Any]:
    """Create, list, get, change and archive."""

    @post("/teams", summary="Create a team", permission="teams:write")
    async def create_team(request: Request[Any, Any, Any]) -> Response[Team]:
        new = await read(request, NewTeam)
        own = caller(request).organisation_id or str(DEFAULT_ORGANISATION)
        organisation = await named_organisation(
            request, organisations, new.organisation or own, "organisation"
        )
        with refusals():
            return answer(request, await teams.create(organisation, new, by(request)), 201)

    @get("/teams", summary="List teams, of one organisation or all", permission="teams:read")
    async def list_teams(
        request: Request[Any, Any, Any],
        organisation: str | None = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[Team]:
        within, team_id = confines(caller(request))
        if organisation is not None:
            named = await named_organisation(request, organisations, organisation, "organisation")
            within = named.id
        return await teams.page(within, team_id, turn(limit, cursor))

    @get(_PATH, summary="A team by id or name", permission="teams:read")
    async def get_team(request: Request[Any, Any, Any], team: str) -> Response[Team | None]:
        return answer_unless_known(request, await named_team(request, teams, team))

    @patch(_PATH, summary="Change a team", permission="teams:write")
    async def update_team(request: Request[Any, Any, Any], team: str) -> Response[Team]:
        found = await named_team(request, teams, team)
        changes, match = await read_patch(request), if_match(request)
        with refusals():
            return answer(request, await teams.update(found.id, changes, match, by(request)))

    @delete(
        _PATH,
        summary="Archive a team: its keys are refused, its usage stays",
        status_code=200,
        permission="teams:write",
    )
    async def archive_team(request: Request[Any, Any, Any], team: str) -> Response[Team]:
        found = await named_team(request, teams, team)
        with refusals():
            return answer(request, await teams.archive(found.id, if_match(request), by(request)))

    return [create_team, list_teams, get_team, update_team, archive_team]
