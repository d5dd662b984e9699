"""What failures mean, which is values in and values out."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.router.retries import (
    BACKOFF_CAP_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    MAX_WAIT_SECONDS,
    REFUSED_SECONDS,
    Failure,
    Rested,
    Where,
    backoff,
    fallback_class,
    implied_status,
    judge,
    retry_after,
    wait_before,
)
from sluice.wire.errors import ErrorDetail

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def failure(
    status: int | None = None,
    code: str | None = None,
    *,
    message: str = "m",
    kind: str = "server_error",
    where: Where = "answer",
    wait: float | None = None,
) -> Failure:
    return Failure(ErrorDetail(message, kind, None, code), status, wait, where)


@pytest.mark.parametrize("status", [400, 402, 403, 404, 405, 408, 409, 413, 422, 425, 429, 499])
def test_no_refusal_counts_against_the_upstream(status: int) -> None:
    assert not judge(failure(status)).counts


@pytest.mark.parametrize("status", [400, 413, 422, 499])
def test_the_callers_faults_end_it(status: int) -> None:
    assert judge(failure(status)).next == "stop"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 529])
def test_the_upstreams_faults_count_and_may_pass(status: int) -> None:
    verdict = judge(failure(status))
    assert (verdict.next, verdict.counts, verdict.rest) == ("same", True, None)


@pytest.mark.parametrize("status", [404, 501])
def test_what_an_upstream_lacks_may_be_had_elsewhere(status: int) -> None:
    verdict = judge(failure(status))
    assert (verdict.next, verdict.counts) == ("elsewhere", False)


@pytest.mark.parametrize("status", [204, 302])
def test_an_answer_out_of_protocol_counts(status: int) -> None:
    verdict = judge(failure(status))
    assert (verdict.next, verdict.counts) == ("elsewhere", True)


@pytest.mark.parametrize(
    "code",
    ["upstream_unreachable", "upstream_connection_lost", "upstream_invalid_response"],
)
@pytest.mark.parametrize("where", ["send", "answer"])
def test_case_37_a_lost_connection_is_worth_another_try(code: str, where: Where) -> None:
    verdict = judge(failure(None, code, where=where))
    assert (verdict.next, verdict.counts) == ("same", True)


def test_who_let_time_pass_is_not_asked_again() -> None:
    verdict = judge(failure(None, "upstream_timeout"))
    assert (verdict.next, verdict.counts) == ("elsewhere", True)


def test_a_connection_that_was_not_made_in_time_is() -> None:
    verdict = judge(failure(None, "upstream_timeout", where="send"))
    assert (verdict.next, verdict.counts) == ("same", True)


@pytest.mark.parametrize("where", ["send", "answer", "stream"])
def test_the_requests_own_deadline_is_nobodys_fault(where: Where) -> None:
    verdict = judge(failure(None, "deadline_exceeded", where=where))
    assert (verdict.next, verdict.counts, verdict.rest) == ("stop", False, None)


@pytest.mark.parametrize(
    ("broken", "counts"),
    [
        (failure(None, "upstream_connection_lost", where="stream"), True),
        (failure(None, "upstream_timeout", where="stream"), True),
        (failure(None, kind="overloaded_error", where="stream"), True),
        (failure(None, kind="invalid_request_error", where="stream"), False),
    ],
)
def test_case_33_after_content_nothing_is_tried_again(broken: Failure, counts: bool) -> None:
    verdict = judge(broken)
    assert (verdict.next, verdict.counts) == ("stop", counts)


def test_a_limit_rests_for_as_long_as_it_says() -> None:
    assert judge(failure(429, wait=7)).rest == Rested(7, "deployment", limited=True)
    assert judge(failure(429)).rest is None
    assert judge(failure(503, wait=7)).rest == Rested(7, "deployment", limited=False)


@pytest.mark.parametrize(
    "refused",
    [failure(402), failure(429, "insufficient_quota"), failure(429, kind="insufficient_quota")],
)
def test_a_credential_without_quota_rests_altogether(refused: Failure) -> None:
    verdict = judge(refused)
    assert verdict.rest == Rested(REFUSED_SECONDS, "credential", limited=True)
    assert not verdict.counts


def test_a_refused_credential_rests_and_is_never_the_callers_fault() -> None:
    verdict = judge(failure(401))
    assert (verdict.next, verdict.counts) == ("same", False)
    assert verdict.rest == Rested(REFUSED_SECONDS, "credential", limited=False)


def test_a_missing_permission_is_one_deployments() -> None:
    verdict = judge(failure(403, kind="permission_error"))
    assert verdict.rest == Rested(REFUSED_SECONDS, "deployment", limited=False)


def test_a_403_that_a_prompt_may_have_caused_stops_nobody_else() -> None:
    verdict = judge(failure(403, message="the upstream answered with status 403"))
    assert (verdict.next, verdict.counts, verdict.rest) == ("elsewhere", False, None)


def test_an_upstream_that_says_so_is_not_asked_again() -> None:
    final = Failure(ErrorDetail("m"), 503, should_retry=False)
    assert judge(final).next == "elsewhere"
    assert judge(Failure(ErrorDetail("m"), 400, should_retry=False)).next == "stop"
    assert judge(Failure(ErrorDetail("m"), 400, should_retry=True)).next == "stop"


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("503", "server_error", 503),
        ("429", "invalid_request_error", 429),
        (None, "overloaded_error", 529),
        (None, "BadRequestError", 400),
        ("rate_limit_exceeded", "requests", 429),
        (None, "server_error", 500),
        ("0", "x", 500),
        ("١٢٣", "x", 500),
        ("4000", "x", 500),
    ],
)
def test_case_33_an_error_inside_a_200_has_a_status_too(
    code: str | None, kind: str, status: int
) -> None:
    assert implied_status(failure(None, code, kind=kind)) == status


OVERFLOWS = [
    failure(400, "context_length_exceeded"),
    failure(400, "400", message="This model's maximum context length is 8192 tokens. However"),
    failure(400, message="prompt is too long: 210000 tokens > 200000 maximum"),
    failure(400, message="input length and `max_tokens` exceed context limit: 199000 + 4096"),
    failure(None, "400", message="The prompt is longer than the maximum model length of 64"),
]
POLICIES = [
    failure(400, "content_filter"),
    failure(400, "content_policy_violation"),
    failure(400, message="Output blocked by content filtering policy"),
    failure(403, kind="moderation_blocked"),
    failure(400, "invalid_prompt", message="flagged as potentially violating our usage policy"),
]


@pytest.mark.parametrize("refusal", OVERFLOWS)
def test_overflows_are_known(refusal: Failure) -> None:
    assert fallback_class(refusal) == "context_overflow"
    assert judge(refusal).next == "stop"


@pytest.mark.parametrize("refusal", POLICIES)
def test_policies_are_known(refusal: Failure) -> None:
    assert fallback_class(refusal) == "content_policy"
    assert judge(refusal).rest is None


@pytest.mark.parametrize(
    "other",
    [
        failure(400, message="`temperature` must be at most 2"),
        failure(503, "context_length_exceeded"),
        failure(429, message="maximum context length"),
        failure(None, "upstream_connection_lost"),
    ],
)
def test_other_failures_have_no_fallbacks_of_their_own(other: Failure) -> None:
    assert fallback_class(other) is None


draws = st.floats(min_value=0, max_value=1, exclude_max=True)


@given(attempt=st.integers(min_value=-5, max_value=10**6), number=draws)
def test_backoff_is_full_jitter_below_a_cap(attempt: int, number: float) -> None:
    wait = backoff(attempt, lambda: number)
    assert 0 <= wait <= BACKOFF_CAP_SECONDS
    assert backoff(attempt, lambda: 0.0) == 0


def test_backoff_doubles() -> None:
    assert [backoff(n, lambda: 1.0) for n in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 8, 8]


@given(
    attempt=st.integers(min_value=1, max_value=50),
    asked=st.none() | st.floats(min_value=-1, max_value=1e6),
    number=draws,
    remaining=st.none() | st.floats(min_value=-1, max_value=100),
)
def test_a_wait_obeys_the_upstream_and_fits_the_deadline(
    attempt: int, asked: float | None, number: float, remaining: float | None
) -> None:
    wait = wait_before(attempt, asked, lambda: number, remaining)
    if wait is None:
        late = remaining is not None and remaining <= MAX_WAIT_SECONDS
        assert late or (asked is not None and asked > MAX_WAIT_SECONDS)
        return
    assert max(asked or 0, 0) <= wait <= MAX_WAIT_SECONDS
    assert remaining is None or wait < remaining


def test_those_who_were_refused_together_do_not_come_back_together() -> None:
    draw = random.Random(1).random
    assert len({wait_before(1, MAX_WAIT_SECONDS / 2, draw) for _ in range(20)}) == 20


HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
        ({"retry-after": (NOW + timedelta(seconds=90)).strftime(HTTP_DATE)}, 90),
        ({"retry-after": (NOW - timedelta(days=9)).strftime(HTTP_DATE)}, 0),
        ({"retry-after": "Sunday, 01-Mar-26 12:01:00 GMT"}, 60),
        ({"retry-after": "Sun Mar  1 12:01:00 2026"}, 60),
        ({"retry-after": "999999999"}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after": (NOW + timedelta(days=999)).strftime(HTTP_DATE)}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Sun, 99 Mar 2026 12:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_case_70_retry_after_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@given(text=st.text(max_size=40))
def test_case_70_no_garbage_breaks_it(text: str) -> None:
    seconds = retry_after({"retry-after": text, "retry-after-ms": text}, NOW)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS
