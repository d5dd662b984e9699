"""What is left of a caller's rates, in the headers that its client knows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sluice.gateway.quotas.accounts import Account

#: After so long without another request the whole minute would be there again; see `admit.lua`.
RESET = timedelta(seconds=60.5)

Header = tuple[bytes, bytes]
_Left = tuple[int, int]


def openai_headers(accounts: Iterable[Account]) -> list[Header]:
    """`x-ratelimit-*`, whose reset is a duration."""
    return [
        header
        for kind, (left, limit) in _tightest(accounts)
        for header in (
            (b"x-ratelimit-limit-" + kind, b"%d" % limit),
            (b"x-ratelimit-remaining-" + kind, b"%d" % left),
            (b"x-ratelimit-reset-" + kind, b"0s" if left == limit else b"1m0.5s"),
        )
    ]


def anthropic_headers(accounts: Iterable[Account], now: datetime) -> list[Header]:
    """`anthropic-ratelimit-*`, whose reset is an RFC 3339 time."""
    now = now.astimezone(UTC)
    return [
        header
        for kind, (left, limit) in _tightest(accounts)
        for header in (
            (b"anthropic-ratelimit-" + kind + b"-limit", b"%d" % limit),
            (b"anthropic-ratelimit-" + kind + b"-remaining", b"%d" % left),
            (
                b"anthropic-ratelimit-" + kind + b"-reset",
                (now if left == limit else now + RESET).strftime("%Y-%m-%dT%H:%M:%SZ").encode(),
            ),
        )
    ]


def _tightest(accounts: Iterable[Account]) -> list[tuple[bytes, _Left]]:
    """Of the limits on requests, and of those on tokens, the one of which the least is left,
    whatever level it is of: what is left, and the limit."""
    requests: _Left | None = None
    tokens: _Left | None = None
    for account in accounts:
        if account.rpm >= 0:
            left = (min(max(account.remaining_requests, 0), account.rpm), account.rpm)
            requests = left if requests is None or left < requests else requests
        if account.tpm >= 0:
            left = (min(max(account.remaining_tokens, 0), account.tpm), account.tpm)
            tokens = left if tokens is None or left < tokens else tokens
    both = ((b"requests", requests), (b"tokens", tokens))
    return [(kind, left) for kind, left in both if left is not None]
