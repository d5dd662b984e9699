"""What is left of a caller's rates, in the headers that its client knows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from sluice.gateway.quotas.accounts import Account

#: After so long without another request the whole minute would be there again; see `admit.lua`.
RESET = timedelta(seconds=60.5)

Header = tuple[bytes, bytes]

#: What is left, and the limit.
_Left = tuple[int, int]

#: Of requests, and of tokens; None where there is no limit.
Left = tuple[_Left | None, _Left | None]


#: Of `x-ratelimit-*`, by kind: the names, and the resets where all is left and where it isn't.
_LIMIT_REQUESTS, _LIMIT_TOKENS = b"x-ratelimit-limit-requests", b"x-ratelimit-limit-tokens"
_LEFT_REQUESTS, _LEFT_TOKENS = b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens"
_RESET_REQUESTS, _RESET_TOKENS = (
    ((name, b"1m0.5s"), (name, b"0s"))
    for name in (b"x-ratelimit-reset-requests", b"x-ratelimit-reset-tokens")
)


def openai_headers(left_over: Left) -> list[Header]:
    """`x-ratelimit-*`, whose reset is a duration."""
    headers: list[Header] = []
    requests, tokens = left_over
    if requests is not None:
        left, limit = requests
        headers.append(_limit(_LIMIT_REQUESTS, limit))
        headers.append((_LEFT_REQUESTS, b"%d" % left))
        headers.append(_RESET_REQUESTS[left == limit])
    if tokens is not None:
        left, limit = tokens
        headers.append(_limit(_LIMIT_TOKENS, limit))
        headers.append((_LEFT_TOKENS, b"%d" % left))
        headers.append(_RESET_TOKENS[left == limit])
    return headers


@lru_cache(maxsize=4096)
def _limit(name: bytes, limit: int) -> Header:
    """One that changes as seldom as limits do."""
    return (name, b"%d" % limit)


def anthropic_headers(left_over: Left, now: datetime) -> list[Header]:
    """`anthropic-ratelimit-*`, whose reset is an RFC 3339 time."""
    now = now.astimezone(UTC)
    return [
        header
        for kind, found in zip((b"requests", b"tokens"), left_over, strict=True)
        if found is not None
        for header in (
            (b"anthropic-ratelimit-" + kind + b"-limit", b"%d" % found[1]),
            (b"anthropic-ratelimit-" + kind + b"-remaining", b"%d" % found[0]),
            (b"anthropic-ratelimit-" + kind + b"-reset", _reset(found, now)),
        )
    ]


def _reset(found: _Left, now: datetime) -> bytes:
    left, limit = found
    at = now if left == limit else now + RESET
    return at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()


def left_of(accounts: Iterable[Account]) -> Left:
    """Of the limits on requests, and of those on tokens, the one of which the least is left,
    whatever level it is of."""
    requests: _Left | None = None
    tokens: _Left | None = None
    for account in accounts:
        rpm, tpm = account.rpm, account.tpm
        if rpm >= 0:
            left = min(max(account.remaining_requests, 0), rpm)
            if requests is None or (left, rpm) < requests:
                requests = (left, rpm)
        if tpm >= 0:
            left = min(max(account.remaining_tokens, 0), tpm)
            if tokens is None or (left, tpm) < tokens:
                tokens = (left, tpm)
    return requests, tokens
