"""Errors in the format of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from sluice.wire import sse
from sluice.wire.errors import ErrorDetail
from sluice.wire.objects import encode

#: The reason that makes Anthropic's SDK send a whole conversation in place of a thread's end.
THREAD_UNSUPPORTED = "thread_unsupported_request"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

#: For errors inside a stream, which have no status: what our own types and codes mean.
_BY_WORD = {
    "insufficient_quota": "rate_limit_error",
    "rate_limit_exceeded": "rate_limit_error",
    "server_is_overloaded": "overloaded_error",
    "service_unavailable_error": "overloaded_error",
    "upstream_timeout": "timeout_error",
    "context_length_exceeded": "invalid_request_error",
}

#: Anthropic's words for a prompt that doesn't fit. Claude Code looks for them, and compacts.
_TOO_LONG = "prompt is too long"


def messages_status(status: int) -> int:
    """The status that says the same to an Anthropic client: overload has its own, and the SDK's
    exception for it."""
    return 529 if status == 503 else status


def messages_error_body(status: int, detail: ErrorDetail, request_id: str) -> bytes:
    """The body of an error response.

    Args:
        status: the response's HTTP status.
        detail: what is wrong.
        request_id: ours, also in the `request-id` header.
    """
    other = "invalid_request_error" if 400 <= status < 500 else "api_error"
    return encode(_error(_TYPES.get(status, other), detail, request_id))


def error_event(detail: ErrorDetail, request_id: str | None = None) -> bytes:
    """An `error` event, which ends a stream."""
    known = _BY_WORD.get(detail.code or "") or _BY_WORD.get(detail.type)
    kind = detail.type if detail.type in _TYPES.values() else "api_error"
    return sse.encode(encode(_error(known or kind, detail, request_id)), b"error")


def _error(kind: str, detail: ErrorDetail, request_id: str | None) -> dict[str, Any]:
    error: dict[str, Any] = {"type": kind, "message": _message(detail)}
    if detail.code == THREAD_UNSUPPORTED:
        error["details"] = {"error_code": THREAD_UNSUPPORTED}
    body: dict[str, Any] = {"type": "error", "error": error}
    return body if request_id is None else {**body, "request_id": request_id}


def _message(detail: ErrorDetail) -> str:
    too_long = detail.code == "context_length_exceeded" or (
        "maximum context length" in detail.message
    )
    if too_long and _TOO_LONG not in detail.message:
        return f"{_TOO_LONG}: {detail.message}"
    return detail.message
