"""API keys: made, recognised, hashed. A key is shown once and kept nowhere."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence

PREFIX = "sk-sluice-"


def new_key() -> str:
    """A fresh key: 256 random bits behind a recognisable prefix."""
    return PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> bytes:
    """SHA-256 of a key. Keys have 256 random bits, so that a slow hash would protect nothing."""
    return hashlib.sha256(key.encode()).digest()


def key_hint(key: str) -> str:
    """Enough of a key to recognise it by, too little to guess it."""
    shown = len(PREFIX) + 4 if key.startswith(PREFIX) else 4
    return f"{key[:shown]}…{key[-4:]}"


_IN_URL = re.compile(r"([?&](?:key|api[_-]?key|token|access_token|secret)=)[^&\s\"']+", re.I)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")


def redactor(known: Sequence[str]) -> Callable[[str], str]:
    """A function that takes credentials out of text that somebody else wrote.

    Args:
        known: the exact credentials that must not appear.
    """

    longest_first = sorted(known, key=len, reverse=True)  # one may be the beginning of another

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "[redacted]")
        return _BEARER.sub(r"\1[redacted]", _IN_URL.sub(r"\1[redacted]", text))

    return redact
