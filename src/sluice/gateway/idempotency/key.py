"""What a request says of idempotency: its key, what it is a repetition of, and whether it waits."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable

import msgspec

from sluice.backends.base import Endpoint
from sluice.gateway.errors import GatewayError
from sluice.gateway.intake import Received
from sluice.wire.objects import encode

MAX_CHARACTERS = 255

#: The header, and how clients write it that can have no hyphen.
HEADERS = (b"idempotency-key", b"idempotency_key")

_PREFER = b"prefer"

Headers = Iterable[tuple[bytes, bytes]]


def key_of(headers: Headers) -> str | None:
    """The key in a request's headers, bare or as a structured-field string; None without one.

    Raises:
        GatewayError: 400, it is no key.
    """
    given = [value for name, value in headers if name in HEADERS]
    if not given:
        return None
    keys = {_unquoted(value) for value in given}
    key = keys.pop()
    if keys or key is None or not 0 < len(key) <= MAX_CHARACTERS:
        raise GatewayError.invalid(
            f"`Idempotency-Key` must be one key of 1 to {MAX_CHARACTERS} printable ASCII"
            " characters, bare or in double quotes.",
            "Idempotency-Key",
            "invalid_value",
        )
    return key


def waits(headers: Headers) -> bool:
    """Whether the client would rather wait than hear that its first attempt still runs; it says
    that it would not by `Prefer: wait=0`."""
    preferences = b",".join(value for name, value in headers if name == _PREFER)
    parts = preferences.lower().replace(b";", b",").split(b",")
    return b"wait=0" not in (part.replace(b" ", b"") for part in parts)


def unkeyed(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers without the key."""
    return [(name, value) for name, value in headers if name not in HEADERS]


def entry_name(team_id: str, endpoint: Endpoint, key: str) -> str:
    """What a key is called where it is kept: a hash that differs for each team and endpoint."""
    return hashlib.sha256(encode([team_id, endpoint.value, key])).hexdigest()


def fingerprint(received: Received) -> str:
    """A hash of all that the answer depends on: the body, in whatever order its members come,
    and the headers that travel with it or steer it."""
    request = received.request
    told = encode(
        [request.members, received.tier, request.disable_fallbacks, dict(received.headers)]
    )
    # where a value is none that Python has, the same bytes are the same request
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        told = msgspec.json.encode(msgspec.json.decode(told), order="deterministic")
    return hashlib.sha256(told).hexdigest()


def _unquoted(value: bytes) -> str | None:
    """The key in a header's value; None if it can't be one. Quotes come with escapes (RFC 8941)."""
    text = value.strip(b" \t").decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        return None
    if not text.startswith('"'):
        return text
    out: list[str] = []
    inner = iter(text[1:])
    for character in inner:
        if character == '"':
            return None if next(inner, None) is not None else "".join(out)
        if character == "\\":
            character = next(inner, "")  # noqa: PLW2901 - the escaped one is meant
            if character not in ('"', "\\") or not character:
                return None
        out.append(character)
    return None
