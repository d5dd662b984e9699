"""The ASGI application: routes, and errors in the form that callers expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import structlog
import uuid_utils
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from sluice.gateway.errors import GatewayError
from sluice.gateway.intake import broken_off
from sluice.gateway.openapi import described_api
from sluice.wire.errors import ErrorDetail

_log = structlog.get_logger("sluice.http")

#: How it shows that Postgres is away, starting, stopping or full. The operating system's errors are
#: those of connecting: control-plane routes do no other input and output in the handler.
_DATABASE_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # see `DATABASE_ERRORS` of the ledger
    OSError,
)

#: Answers of the control plane are one caller's, and some hold a key that is shown once.
_PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

#: Litestar's word for a body that the client did not send to its end.
_BODY_BROKE_OFF = "client disconnected prematurely"

_CODES = {404: "unknown_url", 405: "method_not_allowed", 413: "request_too_large"}


def create_app(routes: Sequence[Any]) -> Litestar:
    """The application over the given routes."""
    return Litestar(
        route_handlers=list(routes),
        exception_handlers={
            GatewayError: _gateway_error,
            HTTPException: _http_error,
            **dict.fromkeys(_DATABASE_AWAY, _database_away),
            Exception: _internal_error,
        },
        openapi_config=described_api(),
        after_request=_identify,
        logging_config=None,
        pdb_on_exception=False,
    )


def _render(error: GatewayError) -> Response[bytes]:
    return Response(
        error.body(),
        status_code=error.status,
        media_type="application/json",
        headers={"x-request-id": str(uuid_utils.uuid7()), **_PRIVATE, **error.headers},
    )


def _identify(response: Response[Any]) -> Response[Any]:
    """Every response has an id to ask about, and is kept by nobody on the way."""
    response.headers.setdefault("x-request-id", str(uuid_utils.uuid7()))
    for name, value in _PRIVATE.items():
        response.headers.setdefault(name, value)
    return response


def _gateway_error(_: Request[Any, Any, State], error: GatewayError) -> Response[bytes]:
    return _render(error)


def _http_error(request: Request[Any, Any, State], error: HTTPException) -> Response[bytes]:
    status = error.status_code
    if error.detail == _BODY_BROKE_OFF:
        return _render(broken_off())
    if status >= 500:
        return _internal_error(request, error)
    message = error.detail
    if status == 404:
        message = f"Unknown URL ({request.method} {request.url.path})."
    detail = ErrorDetail(
        message, "invalid_request_error", _param(error), _CODES.get(status, "invalid")
    )
    headers = {} if error.headers is None else dict(error.headers)
    return _render(GatewayError(status, detail, headers))


def _param(error: HTTPException) -> str | None:
    """The parameter at fault, where the framework says which."""
    faults = error.extra
    if isinstance(faults, list) and faults and isinstance(faults[0], dict):
        return faults[0].get("key")
    return None


def _database_away(request: Request[Any, Any, State], error: Exception) -> Response[bytes]:
    if isinstance(error, ValueError):  # asyncpg's word for arguments that are ours to get right
        return _internal_error(request, error)
    _log.warning("database away", path=request.url.path, error=type(error).__name__)
    detail = ErrorDetail(
        "The gateway's database can't be reached, try again.",
        "service_unavailable_error",
        code="service_unavailable",
    )
    return _render(GatewayError(503, detail, {"retry-after": "1"}))


def _internal_error(request: Request[Any, Any, State], error: Exception) -> Response[bytes]:
    _log.error("control-plane request failed", path=request.url.path, exc_info=error)
    return _render(GatewayError.internal())
