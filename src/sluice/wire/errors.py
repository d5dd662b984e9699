"""Error bodies of the OpenAI dialect, written and read.

Upstreams of the family differ: vLLM's codes are numbers, its 401 is a string, unknown routes
answer `{"detail": …}`. Whatever comes, one shape goes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.wire.objects import encode


class InvalidRequest(ValueError):
    """A request that can't be served as it stands.

    Attributes:
        param: the offending parameter, or None.
        code: the machine-readable reason.
    """

    def __init__(
        self, message: str, param: str | None = None, code: str | None = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """The inside of an error body."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None

    def body(self) -> bytes:
        """The whole body, `{"error": {…}}`."""
        return encode({"error": self})


def read_error(body: bytes) -> ErrorDetail | None:
    """The error that a body carries in any of the family's shapes; None where there is none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return _from_value(value)


def _from_value(value: Any) -> ErrorDetail | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("error", value.get("detail"))
    if inner is None and isinstance(value.get("message"), str):
        inner = value
    if isinstance(inner, str):
        return ErrorDetail(message=inner)
    if isinstance(inner, list):  # FastAPI's validation errors
        return ErrorDetail(message=encode(inner).decode(errors="replace"))
    if not isinstance(inner, dict):
        return None
    return ErrorDetail(
        message=_text(inner.get("message")) or "unspecified error",
        type=_text(inner.get("type")) or "server_error",
        param=_text(inner.get("param")),
        code=_text(inner.get("code")),
    )


def _text(value: Any) -> str | None:
    """Codes come as strings, numbers and null; out go strings and null."""
    return None if value is None else str(value)
