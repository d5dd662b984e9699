"""What a failed attempt means: for the next attempt, for the breaker, and for who must rest.

Pure: values in, values out. Every retry of a request is decided here and in `plan`; the clients
below have theirs switched off, so that nothing multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from sluice.wire.errors import ErrorDetail

BACKOFF_BASE_SECONDS = 0.25
BACKOFF_CAP_SECONDS = 8.0

#: The longest wait within a request; for longer ones the caller had better come back.
MAX_WAIT_SECONDS = 2.0

#: Cap on what an upstream's `Retry-After` is taken for.
MAX_RETRY_AFTER_SECONDS = 24 * 3600.0

#: Rest of a credential that was refused or has no quota left: an operator's to mend.
REFUSED_SECONDS = 60.0

#: Our word for a call that was cut short because the request's time was up.
DEADLINE_EXCEEDED = "deadline_exceeded"

Where = Literal["send", "answer", "stream"]
Next = Literal["stop", "elsewhere", "same"]
Scope = Literal["deployment", "credential"]
FallbackClass = Literal["context_overflow", "content_policy"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, as far as decisions need it.

    Attributes:
        detail: the upstream's error, or ours about it.
        status: the upstream's status; None where none came, or an error came inside a 200.
        retry_after: seconds that the upstream asks for (see `retry_after`).
        where: before any byte of a response (`send`), before anything was shown to the caller
            (`answer`), or after that (`stream`).
        should_retry: the upstream's `x-should-retry`, where it gave one.
    """

    detail: ErrorDetail
    status: int | None = None
    retry_after: float | None = None
    where: Where = "answer"
    should_retry: bool | None = None


@dataclass(frozen=True, slots=True)
class Rested:
    """Who is to rest, for how long.

    Attributes:
        seconds: from now.
        scope: the deployment, or the credential altogether. Where a provider has several
            credentials, a limited deployment means that this credential rests for it.
        limited: because of a limit, and not because of a fault or a refusal.
    """

    seconds: float
    scope: Scope
    limited: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a failure.

    Attributes:
        next: nothing can mend it (`stop`), another deployment may do better (`elsewhere`), or the
            same one may too, after a wait (`same`).
        counts: whether it is the upstream's own fault, and so the breaker's to count.
        rest: who is to be left alone.
    """

    next: Next
    counts: bool = False
    rest: Rested | None = None


_STOP = Verdict("stop")
_ELSEWHERE = Verdict("elsewhere")

#: Our own words for failures without a status. One that let its time pass is not asked again: the
#: caller has waited for long enough.
_OURS: Mapping[str, Verdict] = {
    "upstream_unreachable": Verdict("same", counts=True),
    "upstream_connection_lost": Verdict("same", counts=True),
    "upstream_aborted": Verdict("same", counts=True),
    "upstream_invalid_response": Verdict("same", counts=True),
    "upstream_timeout": Verdict("elsewhere", counts=True),
    # a pool at its bound is well, and has already said when to come back
    "pool_overloaded": Verdict("elsewhere"),
    "pool_failed": Verdict("elsewhere", counts=True),
    DEADLINE_EXCEEDED: _STOP,
}

#: What errors inside a 200 would have had as a status, by code or type.
_IMPLIED: Mapping[str, int] = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 429,
    "permission_error": 403,
    "upstream_credential_refused": 401,  # our word for those of Anthropic's, once translated
    "not_found_error": 404,
    "notfounderror": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
    "pool_overloaded": 503,  # our own word
    "timeout_error": 504,
}

#: Not the caller's fault, and perhaps over soon.
_PASSING = frozenset({408, 409, 425, 429})

#: The upstream has no such model or route, or can't do what is asked: others may. None of it
#: counts, since callers can bring 501 about with what they ask for.
_LACKING = frozenset({404, 405, 501, 505})

_EXHAUSTED = frozenset({"insufficient_quota", "credit_balance_exhausted", "billing_error"})

#: How a 403 says that it is about the credential. Others are about a prompt (moderation, web
#: application firewalls): if those let a credential rest, one tenant could stop all the others.
_REFUSED = frozenset(
    {
        "account_deactivated",
        "authentication_error",
        "invalid_api_key",
        "permission_denied",
        "permission_error",
        "unsupported_country_region_territory",
        "upstream_credential_refused",
    }
)

#: How upstreams say that a request does not fit the model's context, in lower case.
_OVERFLOWS = (
    "maximum context length",
    "maximum model length",
    "prompt is too long",
    "input is too long",
    "exceed context limit",
    "exceeds the context window",
    "context length exceeded",
)
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "model_context_window_exceeded"})

#: How upstreams say that a prompt goes against their policy, in lower case.
_POLICIES = (
    "content management policy",
    "content filtering policy",
    "violating our usage policy",
)
_POLICY_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "moderation_blocked",
        "responsibleaipolicyviolation",
    }
)

#: Statuses under which a refusal may be about the request's content.
_ABOUT_CONTENT = frozenset({400, 403, 413, 422})


def judge(failure: Failure) -> Verdict:
    """What follows from a failure."""
    verdict = _judged(failure)
    if failure.where == "stream":
        return Verdict("stop", verdict.counts, verdict.rest)
    if failure.should_retry is False and verdict.next == "same":
        return Verdict("elsewhere", verdict.counts, verdict.rest)
    return verdict


def _judged(failure: Failure) -> Verdict:
    code = failure.detail.code
    if failure.status is None and code is not None and code in _OURS:
        # no connection in time: no work was lost, and the next try is quick
        if code == "upstream_timeout" and failure.where == "send":
            return Verdict("same", counts=True)
        return _OURS[code]
    if fallback_class(failure) is not None:
        return _STOP
    return _of_status(failure, implied_status(failure))


def _of_status(failure: Failure, status: int) -> Verdict:
    wait = failure.retry_after
    if status in (401, 402, 403, 429):
        return _of_access(failure, status)
    if status in _PASSING:
        return Verdict("same", rest=_rested(wait, limited=False))
    if status in _LACKING:
        return _ELSEWHERE
    if 400 <= status < 500:
        return _STOP
    if status >= 500:
        return Verdict("same", counts=True, rest=_rested(wait, limited=False))
    return Verdict("elsewhere", counts=True)  # a redirect, or a success that is none


def _of_access(failure: Failure, status: int) -> Verdict:
    """`same`, since the same deployment may have another credential; if not, it rests."""
    words = _words(failure.detail)
    wait = failure.retry_after
    if status == 402 or words & _EXHAUSTED:
        seconds = max(wait or 0.0, REFUSED_SECONDS)
        return Verdict("same", rest=Rested(seconds, "credential", limited=True))
    if status == 429:
        return Verdict("same", rest=_rested(wait, limited=True))
    if status == 401:
        return Verdict("same", rest=Rested(REFUSED_SECONDS, "credential", limited=False))
    if words & _REFUSED:  # a permission is often one model's
        return Verdict("same", rest=Rested(REFUSED_SECONDS, "deployment", limited=False))
    return _ELSEWHERE


def _rested(seconds: float | None, limited: bool) -> Rested | None:
    return Rested(seconds, "deployment", limited) if seconds else None


def implied_status(failure: Failure) -> int:
    """The upstream's status, or what its words inside a 200 amount to; 500 where they don't say."""
    if failure.status is not None:
        return failure.status
    code = failure.detail.code or ""
    if len(code) == 3 and code.isascii() and code.isdigit() and "400" <= code < "600":
        return int(code)
    found = (_IMPLIED.get(word) for word in (code.lower(), failure.detail.type.lower()))
    return next((status for status in found if status is not None), 500)


def fallback_class(failure: Failure) -> FallbackClass | None:
    """Whether the refusal is one for which a model may have fallbacks of its own."""
    if implied_status(failure) not in _ABOUT_CONTENT:
        return None
    words, text = _words(failure.detail), failure.detail.message.lower()
    if words & _OVERFLOW_CODES or any(wording in text for wording in _OVERFLOWS):
        return "context_overflow"
    if words & _POLICY_CODES or any(wording in text for wording in _POLICIES):
        return "content_policy"
    return None


def _words(detail: ErrorDetail) -> frozenset[str]:
    return frozenset({(detail.code or "").lower(), detail.type.lower()})


def backoff(attempt: int, draw: Callable[[], float]) -> float:
    """Full jitter: anything between nothing and a bound that doubles with each attempt.

    Args:
        attempt: failed attempts so far, 1 for the first.
        draw: gives a number in [0, 1).
    """
    exponent = min(max(attempt, 1) - 1, 16)  # far beyond the cap, well within a float
    return draw() * min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2.0**exponent)


def wait_before(
    attempt: int,
    retry_after: float | None,
    draw: Callable[[], float],
    remaining: float | None = None,
) -> float | None:
    """Seconds to wait before the same target is asked again; None where that is too long.

    What the upstream asks for is never undercut; the jitter comes on top, so that those who were
    refused together do not come back together.

    Args:
        attempt: failed attempts at the target so far.
        retry_after: seconds for which the target is to be left alone.
        draw: gives a number in [0, 1).
        remaining: seconds until the request's deadline, if it has one.
    """
    asked = max(retry_after or 0.0, 0.0)
    if asked > MAX_WAIT_SECONDS:
        return None
    wait = min(asked + backoff(attempt, draw), MAX_WAIT_SECONDS)
    return None if remaining is not None and wait >= remaining else wait


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait by `retry-after-ms`, or by `retry-after` in seconds or as an HTTP date.

    Garbage counts as absent; waits are capped at `MAX_RETRY_AFTER_SECONDS`.

    Args:
        headers: with lower-case names, or indifferent to case.
        now: with a time zone.
    """
    text = headers.get("retry-after")
    seconds = _number(headers.get("retry-after-ms"), 1000)
    if seconds is None:
        seconds = _number(text)
    if seconds is None and text:
        seconds = _until(text, now)
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _number(text: str | None, divisor: float = 1) -> float | None:
    try:
        number = float(text) / divisor if text else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _until(text: str, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
