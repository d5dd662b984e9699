"""Calls that make a batch and have an `Idempotency-Key`: repeated, they make no second one.

The key is a part of the batch's record, and holds for as long as that is kept. So a batch is there
together with its key, and nothing has to be held, or to be found again, while it is made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sluice.gateway.idempotency.key import Headers, key_of


@dataclass(frozen=True, slots=True)
class Once:
    """What a call is known by; hashes.

    Attributes:
        key: of its operation and its key.
        content: of its body.
    """

    key: bytes
    content: bytes


def once(headers: Headers, path: str, body: bytes) -> Once | None:
    """What a call is known by; None: it has no key.

    Raises:
        GatewayError: 400, its key is none.
    """
    key = key_of(headers)
    if key is None:
        return None
    return Once(hashlib.sha256(f"{path}\0{key}".encode()).digest(), hashlib.sha256(body).digest())
