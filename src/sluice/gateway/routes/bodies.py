"""What handlers that read bodies themselves have to look at."""

from __future__ import annotations

from typing import Any

from litestar import Request

from sluice.gateway.errors import GatewayError


def announced_bytes(request: Request[Any, Any, Any]) -> int | None:
    """How long the body says that it is; None where it doesn't.

    Raises:
        GatewayError: 415, it is compressed.
    """
    if request.headers.get("content-encoding") not in (None, "identity"):
        raise GatewayError.invalid(
            "Compressed request bodies are not accepted.", code="unsupported_encoding", status=415
        )
    length = request.headers.get("content-length", "")
    return int(length) if length.isdigit() else None


def whole_number(text: str, param: str, least: int, most: int) -> int:
    """A number that came as text.

    Raises:
        GatewayError: 400, it is none, or not within its bounds.
    """
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
    if not least <= number <= most:
        raise GatewayError.invalid(
            f"`{param}` must be a whole number from {least} to {most}.", param, "invalid_value"
        )
    return number
