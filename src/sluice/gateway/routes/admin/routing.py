"""`/admin/routing`: tiers of models behind `auto`, and weights of deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.params import Parameter

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
from sluice.gateway.routes.admin.bodies import read, refusals
from sluice.gateway.routes.admin.callers import by, caller, named_team
from sluice.gateway.routing.checks import check_document, standing
from sluice.gateway.routing.preview import Preview, Previews
from sluice.gateway.routing.records import RoutingRecord, RoutingVersion, of_configuration
from sluice.gateway.routing.store import RoutingDocuments
from sluice.gateway.tenancy.pages import Page
from sluice.gateway.tenancy.refusals import Missing
from sluice.gateway.tenancy.roles import INSTALLATION
from sluice.gateway.tenancy.teams import Team, Teams
from sluice.router.auto.documents import Alias, RoutingDocument
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog

_PATH = "/routing/{alias:str}"

TeamName = Annotated[str | None, Parameter(description="Of this team's requests only; id or name")]
DryRun = Annotated[bool, Parameter(description="Change nothing; show what it would have done")]


@dataclass(frozen=True, slots=True)
class Routing:
    """What the routes work on.

    Attributes:
        documents: those in the database.
        previews: what documents would have done.
        catalog, table: of this gateway.
    """

    documents: RoutingDocuments
    previews: Previews
    catalog: Catalog
    table: RoutingTable


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a rollback.

    Attributes:
        version: to be in force again; by default the one before. 0: none, as before the first.
    """

    version: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class RoutingVersions(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of a document, newest first."""

    data: list[RoutingVersion]


def routing_routes(routing: Routing, teams: Teams) -> list[Any]:
    """List, get, put, preview, remove and roll back."""

    async def of_team(request: Request[Any, Any, Any], name: str | None) -> Team | None:
        """The team that is named; without one the caller has to be the installation's."""
        if name is not None:
            return await named_team(request, teams, name, "team")
        if not caller(request).covers(INSTALLATION):
            raise GatewayError.forbidden("Name a `team`: only the installation routes for all.")
        return None

    @get("/routing", summary="List routing documents", permission="routing:read")
    async def list_documents(
        request: Request[Any, Any, Any],
        team: TeamName = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Page[RoutingRecord]:
        organisation_id, team_id = confines(caller(request))
        if team is not None:
            team_id = (await named_team(request, teams, team, "team")).id
        return await routing.documents.page(organisation_id, team_id, turn(limit, cursor))

    @get(_PATH, summary="What holds for an alias", permission="routing:read")
    async def get_document(
        request: Request[Any, Any, Any], alias: str, team: TeamName = None
    ) -> Response[RoutingRecord | None]:
        whose = await of_team(request, team)
        with refusals():
            return answer_unless_known(request, await _found(routing, alias, whose))

    @put(
        _PATH,
        summary="Put a document in force, or see what it would have done",
        permission="routing:write",
    )
    async def put_document(
        request: Request[Any, Any, Any], alias: str, team: TeamName = None, dry_run: DryRun = False
    ) -> Response[RoutingRecord] | Response[Preview]:
        whose = await of_team(request, team)
        document, match = await read(request, RoutingDocument), if_match(request)
        with refusals():
            check_document(msgspec.convert(alias, Alias), document, routing.catalog)
            if dry_run:
                team_id = None if whose is None else whose.id
                return Response(await routing.previews.of(alias, team_id, document))
            made = await routing.documents.put(alias, whose, document, match, by(request))
        return answer(request, made)

    @delete(
        _PATH,
        summary="Take a document out of force: what is more general holds again",
        status_code=200,
        permission="routing:write",
    )
    async def remove_document(
        request: Request[Any, Any, Any], alias: str, team: TeamName = None
    ) -> Response[RoutingRecord]:
        whose = await of_team(request, team)
        with refusals():
            removed = await routing.documents.remove(
                alias, None if whose is None else whose.id, if_match(request), by(request)
            )
        return answer(request, removed)

    @get(f"{_PATH}/versions", summary="All versions of a document", permission="routing:read")
    async def list_document_versions(
        request: Request[Any, Any, Any], alias: str, team: TeamName = None
    ) -> RoutingVersions:
        whose = await of_team(request, team)
        with refusals():
            found = await routing.documents.versions(alias, None if whose is None else whose.id)
        return RoutingVersions(data=found)

    @post(
        f"{_PATH}/rollback",
        summary="Put an earlier version in force again",
        status_code=200,
        permission="routing:write",
    )
    async def roll_back_document(
        request: Request[Any, Any, Any], alias: str, team: TeamName = None
    ) -> Response[RoutingRecord]:
        whose = await of_team(request, team)
        to, match = await read(request, Rollback), if_match(request)
        team_id = None if whose is None else whose.id
        with refusals():
            rolled = await routing.documents.roll_back(
                alias, team_id, to.version, match, by(request)
            )
        return answer(request, rolled)

    return [
        list_documents,
        get_document,
        put_document,
        remove_document,
        list_document_versions,
        roll_back_document,
    ]


async def _found(routing: Routing, alias: str, team: Team | None) -> RoutingRecord:
    """What was put for an alias and a team; of all teams, also what the configuration says.

    Raises:
        Missing: nothing was, and it says nothing.
    """
    try:
        return await routing.documents.find(alias, None if team is None else team.id)
    except Missing:
        configured = standing(alias, routing.catalog, routing.table) if team is None else None
        if configured is None:
            raise
        return of_configuration(alias, configured)
