"""Times in queries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

from sluice.gateway.errors import GatewayError


@overload
def time_parameter(text: str, param: str) -> datetime: ...
@overload
def time_parameter(text: None, param: str) -> None: ...
@overload
def time_parameter(text: str | None, param: str) -> datetime | None: ...
def time_parameter(text: str | None, param: str) -> datetime | None:
    """An RFC 3339 time, or a date; without an offset it is UTC.

    Raises:
        GatewayError: 400, it is none.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text.replace(" ", "+"))
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise GatewayError.invalid(
            f"`{param}` must be an RFC 3339 time or a date.", param, "invalid_value"
        ) from None
