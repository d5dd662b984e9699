"""`/v1/usage`: what was used and what it cost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any
from uuid import UUID

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from sluice.billing.reports import (
    DailyUsage,
    InvalidCursor,
    UsageRecords,
    UsageReports,
    day_range,
)
from sluice.gateway.auth import Principal
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access, confines, not_permitted
from sluice.gateway.routes.times import time_parameter
from sluice.gateway.tenancy.refusals import Missing
from sluice.gateway.tenancy.roles import Administrator, verdict
from sluice.gateway.tenancy.teams import Teams

MAX_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Span:
    """Whose usage: a team's, an organisation's (of all its teams), or everybody's."""

    team_id: UUID | None = None
    organisation_id: UUID | None = None


def usage_routes(reports: UsageReports, teams: Teams, access: Access) -> list[HTTPRouteHandler]:
    """A team's day, and single records. A team's key sees its own team only, an administrator
    what lies within its confinement."""

    async def span_of(request: Request[Any, Any, Any], named: str | None) -> _Span:
        caller = await access.identify(request)
        if caller.administrator is not None:
            return await _administrators(caller.administrator, teams, named)
        return _own(caller.principal, named)

    @get("/v1/usage", summary="A team's usage on a day (UTC)", tags=["usage"])
    async def daily(
        request: Request[Any, Any, Any],
        team_id: str | None = None,
        day: Annotated[str | None, Parameter(query="date")] = None,
    ) -> DailyUsage:
        team = (await span_of(request, team_id)).team_id
        if team is None:
            raise GatewayError.invalid(
                "`team_id` is required.", "team_id", "missing_required_parameter"
            )
        return await reports.daily(team, _day(day))

    @get("/v1/usage/records", summary="Single requests, newest first", tags=["usage"])
    async def records(
        request: Request[Any, Any, Any],
        team_id: str | None = None,
        request_id: str | None = None,
        start: Annotated[str | None, Parameter(query="from")] = None,
        end: Annotated[str | None, Parameter(query="to")] = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> UsageRecords:
        span = await span_of(request, team_id)
        if request_id is not None:
            return await reports.record(_uuid(request_id), span.team_id, span.organisation_id)
        if not 1 <= limit <= MAX_PAGE:
            raise GatewayError.invalid(f"`limit` must be 1 to {MAX_PAGE}.", "limit")
        today = day_range(datetime.now(UTC).date())
        since = time_parameter(start, "from") or today[0]
        until = time_parameter(end, "to") or today[1]
        try:
            return await reports.records(
                span.team_id, since, until, cursor, limit, span.organisation_id
            )
        except InvalidCursor as error:
            raise GatewayError.invalid(f"{error}.", "cursor", "invalid_value") from None

    return [daily, records]


def _own(principal: Principal | None, named: str | None) -> _Span:
    """What a key may see: its team's."""
    if principal is None or named not in (None, principal.team_id, principal.team_name):
        raise GatewayError.not_found(f"There is no team `{named}`.")
    return _Span(UUID(principal.team_id))


async def _administrators(administrator: Administrator, teams: Teams, named: str | None) -> _Span:
    """What an administrator may see: the team that is named, else all within the confinement."""
    if "usage:read" not in administrator.permissions:
        raise not_permitted("usage:read")
    organisation_id, team_id = confines(administrator)
    if named is None:
        return _Span(team_id, organisation_id)
    found = None
    with suppress(Missing):
        found = await teams.find(named)
    if found is None or verdict(administrator, "usage:read", found.place) != "allowed":
        raise GatewayError.not_found(f"There is no team `{named}`.")
    return _Span(found.id)


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise GatewayError.invalid("`date` must be YYYY-MM-DD.", "date", "invalid_value") from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise GatewayError.invalid(
            "`request_id` must be a UUID.", "request_id", "invalid_value"
        ) from None
