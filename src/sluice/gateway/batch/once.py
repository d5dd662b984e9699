"""Calls that make a batch or a file and have an `Idempotency-Key`: repeated, they make no second
one.

The key is a part of the record that the call makes, and holds for as long as that is kept. So the
record is there together with its key, and nothing has to be held, or to be found again, while it is
made. Of two calls at the same time the quicker one makes the record, and both are answered with it.

What streams is never held: it is hashed as it passes, and compared when it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec

from sluice.gateway.idempotency.key import Headers, key_of


class MadeMeanwhile(Exception):
    """Another call with the same key was quicker."""


@dataclass(frozen=True, slots=True)
class Once:
    """What a call is known by; hashes.

    Attributes:
        key: of its operation and its key.
        content: of its body.
    """

    key: bytes
    content: bytes


def once_key(headers: Headers, path: str) -> bytes | None:
    """The hash of a call's operation and its key; None: it has no key.

    Raises:
        GatewayError: 400, its key is none.
    """
    key = key_of(headers)
    return None if key is None else hashlib.sha256(f"{path}\0{key}".encode()).digest()


def once(headers: Headers, path: str, body: bytes) -> Once | None:
    """What a call is known by that has all of its body; None: it has no key.

    Raises:
        GatewayError: 400, its key is none.
    """
    key = once_key(headers, path)
    return None if key is None else Once(key, hashlib.sha256(body).digest())


class Passing:
    """What passes of a call with a key, or without."""

    def __init__(self, key: bytes | None) -> None:
        """Args:
        key: see `once_key`.
        """
        self.key = key
        self._hash = hashlib.sha256()

    async def hashed(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks."""
        async for chunk in chunks:
            if self.key is not None:
                self._hash.update(chunk)
            yield chunk

    def once(self, options: Mapping[str, str], filename: str = "") -> Once | None:
        """What the call is known by, when all has passed; None: it has no key. How a form is cut
        into parts is no part of it: clients choose another boundary each time.

        Args:
            options: that came beside, in a query or as fields.
            filename: of the form's file.
        """
        if self.key is None:
            return None
        beside = msgspec.json.encode((sorted(options.items()), filename))
        return Once(self.key, hashlib.sha256(self._hash.digest() + beside).digest())
