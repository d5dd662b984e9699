"""Answers of admin calls: records with their ETags, and what conditional requests ask."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from litestar import Request, Response
from litestar.params import Parameter

from sluice.billing.reports import InvalidCursor
from sluice.gateway.errors import GatewayError
from sluice.gateway.routes.admin.callers import request_id
from sluice.gateway.tenancy.matching import Match
from sluice.gateway.tenancy.pages import Turn


class Revised(Protocol):
    """A record that has a revision."""

    @property
    def revision(self) -> int:
        """Grows with every change."""


R = TypeVar("R", bound=Revised)

MAX_PAGE = 1000
Limit = Annotated[int, Parameter(ge=1, le=MAX_PAGE, description="How many on the page")]
Cursor = Annotated[str | None, Parameter(description="`next` of the page before")]


def answer(request: Request[Any, Any, Any], record: R, status: int = 200) -> Response[R]:
    """A record with its ETag."""
    return Response(record, status_code=status, headers=_headers(request, record))


def shown_once(
    request: Request[Any, Any, Any], record: Revised, member: str, secret: str
) -> Response[dict[str, Any]]:
    """A new record with the secret itself, which is shown here and nowhere else, ever."""
    body: dict[str, Any] = {**msgspec.to_builtins(record), member: secret}
    return Response(body, status_code=201, headers=_headers(request, record))


def answer_unless_known(request: Request[Any, Any, Any], record: R) -> Response[R | None]:
    """A record, or 304 if the caller has it as it is (`If-None-Match`)."""
    known = {tag.removeprefix("W/") for tag in _tags(request, "if-none-match")}
    if known & {"*", _etag(record)}:
        return Response(None, status_code=304, headers=_headers(request, record))
    return Response(record, headers=_headers(request, record))


def if_match(request: Request[Any, Any, Any]) -> Match:
    """The revisions that a change is meant for; a tag that is none of ours matches nothing."""
    tags = _tags(request, "if-match")
    if not tags or "*" in tags:
        return None
    inner = [tag[1:-1] for tag in tags if len(tag) > 2 and tag[0] == tag[-1] == '"']
    return frozenset(int(text) for text in inner if text.isascii() and text.isdigit())


def turn(limit: int, cursor: str | None) -> Turn:
    """The page that is asked for.

    Raises:
        GatewayError: 400, the cursor is none of ours.
    """
    try:
        return Turn.of(limit, cursor)
    except InvalidCursor as error:
        raise GatewayError.invalid(f"{error}.", "cursor", "invalid_value") from None


def _headers(request: Request[Any, Any, Any], record: Revised) -> dict[str, str]:
    return {"etag": _etag(record), "x-request-id": str(request_id(request))}


def _etag(record: Revised) -> str:
    return f'"{record.revision}"'


def _tags(request: Request[Any, Any, Any], header: str) -> list[str]:
    lines = request.headers.getall(header, [])
    return [tag.strip() for line in lines for tag in line.split(",") if tag.strip()]
