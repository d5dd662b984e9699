"""The first look at a request: lines and headers that different servers read differently.

The HTTP parser refuses what is malformed. What is left here is well-formed and ambiguous: a proxy
in front might see another request, another caller or another path in it than we do, and so let
through what it was to keep out. Such a request is refused, and its connection closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.backends.base import Endpoint
from sluice.gateway.errors import GatewayError
from sluice.wire.messages_errors import messages_error_body

#: Longest path with its query, in bytes.
MAX_TARGET_BYTES = 8192

#: Headers that say one thing, and so may come once.
_SINGLE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"origin",
        b"transfer-encoding",
        b"x-api-key",
        b"x-team-id",
        b"x-tier",
    }
)


class HeaderGuard:
    """An ASGI application in front of another; see the module."""

    def __init__(self, app: Any, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        error = _check_target(scope) or _check_headers(scope["headers"], self._max_header_bytes)
        if error is None:
            await self._app(scope, receive, send)
        else:
            await _refuse(scope["path"], error, send)


def _check_target(scope: dict[str, Any]) -> GatewayError | None:
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    if len(raw_path) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        return GatewayError.invalid("The URL is too long.", code="url_too_long", status=414)
    # A prefix such as /admin must look the same to whoever guards it by its path.
    first = raw_path[1:].partition(b"/")[0]
    if b"%" in first or raw_path.startswith(b"//"):
        return GatewayError.invalid("The URL's path is not in its plain form.", code="bad_url")
    return None


def _check_headers(headers: Sequence[tuple[bytes, bytes]], limit: int) -> GatewayError | None:
    by_name = dict(headers)
    if len(by_name) != len(headers):  # few requests repeat a name
        for name in _SINGLE:
            if sum(each == name for each, _ in headers) > 1:
                return _ambiguous(name, "may come once only")
        size = sum(len(name) + len(value) for name, value in headers)
    else:
        size = sum(map(len, by_name)) + sum(map(len, by_name.values()))
    if size > limit:
        return GatewayError.invalid(
            "The headers are too large.", code="headers_too_large", status=431
        )
    if not by_name.get(b"host"):
        return _ambiguous(b"host", "is required")
    coding = by_name.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            return _ambiguous(b"transfer-encoding", "must be chunked")
        if b"content-length" in by_name:
            return _ambiguous(b"content-length", "contradicts `transfer-encoding`")
    return None


def _ambiguous(name: bytes, why: str) -> GatewayError:
    header = name.decode()
    return GatewayError.invalid(f"The header `{header}` {why}.", header, "invalid_header")


async def _refuse(path: str, error: GatewayError, send: Any) -> None:
    body = error.body()
    if path.startswith(f"/v1/{Endpoint.MESSAGES.value}"):
        body = messages_error_body(error.status, error.detail, "")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
