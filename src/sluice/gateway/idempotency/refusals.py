"""What callers hear whose key is not free."""

from __future__ import annotations

from sluice.gateway.errors import GatewayError
from sluice.wire.errors import ErrorDetail


def reused() -> GatewayError:
    """The key is that of another request."""
    return GatewayError.invalid(
        "This Idempotency-Key was used for a request with another body.",
        "Idempotency-Key",
        "idempotency_key_reused",
        422,
    )


def in_progress() -> GatewayError:
    """The first request with the key is not answered yet."""
    detail = ErrorDetail(
        "A request with this Idempotency-Key is in progress.",
        "invalid_request_error",
        "Idempotency-Key",
        "idempotency_in_progress",
    )
    return GatewayError(409, detail, {"retry-after": "1"})
