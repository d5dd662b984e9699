"""Bodies of admin calls: strictly of a type, and errors that name the parameter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from litestar import Request

from sluice.gateway.errors import GatewayError
from sluice.gateway.tenancy.records import Members
from sluice.gateway.tenancy.refusals import Conflict, Missing, Outdated

T = TypeVar("T")

#: Largest body of an admin call.
MAX_BODY_BYTES = 64 * 1024


async def read(request: Request[Any, Any, Any], kind: type[T]) -> T:
    """The body as a type; an empty body is an empty object.

    Raises:
        GatewayError: 400, with the parameter named.
    """
    text = await request.body()
    try:
        return msgspec.json.decode(text or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(error) from None


async def read_patch(request: Request[Any, Any, Any]) -> Members:
    """The body of a merge patch (RFC 7396).

    Raises:
        GatewayError: 400, it is no JSON object.
    """
    return await read(request, dict[str, msgspec.Raw])


@contextmanager
def refusals() -> Iterator[None]:
    """What callers hear of changes that were not made."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # members come undecoded
        raise invalid(error) from None
    except Missing as error:
        raise GatewayError.not_found(_sentence(error)) from None
    except Conflict as error:
        raise GatewayError.invalid(_sentence(error), error.param, "conflict", 409) from None
    except Outdated as error:
        raise GatewayError.invalid(_sentence(error), None, "precondition_failed", 412) from None


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def invalid(error: msgspec.DecodeError | UnicodeDecodeError) -> GatewayError:
    """The body is no JSON, or a member is wrong."""
    if not isinstance(error, msgspec.ValidationError):
        return GatewayError.invalid(f"The body is not JSON: {error}", code="invalid_json")
    message, _, path = str(error).partition(" - at `$.")
    param = path.removesuffix("`") or None
    # unknown and missing members are named in the text, types that are expected are, too
    if param is None and "`" in message and not message.startswith("Expected "):
        param = message.split("`")[-2]
    return GatewayError.invalid(f"{message}.", param, "invalid_value")
