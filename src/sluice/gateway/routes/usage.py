"""`/v1/usage`: what was used and what it cost."""

from __future__ import annotations

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
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.access import Access, Caller
from sluice.gateway.tenancy.registry import Missing, Tenancy

MAX_PAGE = 1000


def usage_routes(reports: UsageReports, tenancy: Tenancy, access: Access) -> list[HTTPRouteHandler]:
    """A team's day, and single records. A team's key sees its own team only."""

    async def team_of(caller: Caller, named: str | None) -> UUID | None:
        if named is None:
            return caller.team_id
        own = caller.principal
        if own is not None and named in (own.team_id, own.team_name):
            return caller.team_id
        if own is not None:
            raise GatewayError.not_found(f"There is no team `{named}`.")
        try:
            return (await tenancy.find_team(named)).id
        except Missing as error:
            raise GatewayError.not_found(f"{error}.") from None

    @get("/v1/usage", summary="A team's usage on a day (UTC)", tags=["usage"])
    async def daily(
        request: Request[Any, Any, Any],
        team_id: str | None = None,
        day: Annotated[str | None, Parameter(query="date")] = None,
    ) -> DailyUsage:
        team = await team_of(access.caller(request), team_id)
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
        team = await team_of(access.caller(request), team_id)
        if request_id is not None:
            return await reports.record(_uuid(request_id), team)
        if not 1 <= limit <= MAX_PAGE:
            raise GatewayError.invalid(f"`limit` must be 1 to {MAX_PAGE}.", "limit")
        today = day_range(datetime.now(UTC).date())
        since = _time(start, "from") if start else today[0]
        until = _time(end, "to") if end else today[1]
        try:
            return await reports.records(team, since, until, cursor, limit)
        except InvalidCursor as error:
            raise GatewayError.invalid(f"{error}.", "cursor", "invalid_value") from None

    return [daily, records]


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise GatewayError.invalid("`date` must be YYYY-MM-DD.", "date", "invalid_value") from None


def _time(text: str, param: str) -> datetime:
    """An RFC 3339 time, or a date; without an offset it is UTC."""
    try:
        time = datetime.fromisoformat(text.replace(" ", "+"))
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise GatewayError.invalid(
            f"`{param}` must be an RFC 3339 time or a date.", param, "invalid_value"
        ) from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise GatewayError.invalid(
            "`request_id` must be a UUID.", "request_id", "invalid_value"
        ) from None
