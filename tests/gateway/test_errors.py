"""What callers hear of upstream failures, and how long they are told to wait."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.errors import GatewayError, from_upstream
from sluice.router.dispatch import UpstreamFailure
from sluice.router.policy import RoutingRefused
from sluice.router.retries import MAX_RETRY_AFTER_SECONDS, retry_after
from sluice.wire.errors import ErrorDetail, InvalidRequest

NOW = datetime(2026, 3, 5, 12, 0, 0, tzinfo=UTC)


def heard(status: int | None, detail: ErrorDetail | None = None, **headers: str) -> GatewayError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return from_upstream(UpstreamFailure(detail or ErrorDetail("words"), status, named))


@pytest.mark.parametrize(
    ("status", "ours", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 502, "server_error"),
        (402, 502, "server_error"),
        (403, 502, "server_error"),
        (404, 404, "invalid_request_error"),
        (408, 504, "server_error"),
        (409, 409, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (415, 415, "invalid_request_error"),
        (422, 422, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 502, "server_error"),
        (501, 502, "server_error"),
        (502, 502, "server_error"),
        (503, 503, "service_unavailable_error"),
        (504, 504, "server_error"),
        (529, 503, "service_unavailable_error"),
        (599, 502, "server_error"),
        (204, 502, "server_error"),
        (302, 502, "server_error"),
        (None, 502, "server_error"),
    ],
)
def test_every_status_has_its_meaning_for_the_caller(
    status: int | None, ours: int, kind: str
) -> None:
    error = heard(status)
    assert (error.status, error.detail.type) == (ours, kind)
    assert list(json.loads(error.body())["error"]) == ["message", "type", "param", "code"]


@given(status=st.none() | st.integers(min_value=100, max_value=999), code=st.text() | st.none())
def test_no_status_becomes_a_success_or_a_401(status: int | None, code: str | None) -> None:
    error = heard(status, ErrorDetail("m", code=code))
    assert 400 <= error.status <= 599
    assert error.status not in (401, 402, 403)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_our_refused_credential_is_our_fault_and_not_worth_a_retry(status: int) -> None:
    error = heard(status, ErrorDetail("Incorrect API key: sk-1234", code="invalid_api_key"))
    assert error.headers == {"x-should-retry": "false"}
    assert "sk-1234" not in str(error)
    assert error.detail.code == "upstream_credential_refused"


@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_is_said_to_be_one(status: int) -> None:
    error = heard(status, ErrorDetail("busy", code="529"), retry_after="7")
    assert error.detail.code == "server_is_overloaded"
    assert error.headers == {"retry-after": "7"}


@pytest.mark.parametrize(
    ("code", "status"), [("upstream_timeout", 504), ("upstream_connection_lost", 502), (None, 502)]
)
def test_failures_without_a_status_have_one_by_their_kind(code: str | None, status: int) -> None:
    assert heard(None, ErrorDetail("m", code=code)).status == status


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 21000 > 200000",
    ],
)
@pytest.mark.parametrize("code", [None, "400", "BadRequestError"])
def test_case_58_every_wording_of_an_overflow_is_recognised(message: str, code: str | None) -> None:
    error = heard(400, ErrorDetail(message, "BadRequestError", None, code))
    assert (error.status, error.detail.code) == (400, "context_length_exceeded")
    assert error.headers == {}


@pytest.mark.parametrize(
    ("status", "code", "ours"),
    [(404, "404", "model_not_found"), (400, "400", None), (400, "x", "x"), (422, None, None)],
)
def test_numbers_in_the_place_of_codes_are_no_codes(
    status: int, code: str | None, ours: str | None
) -> None:
    assert heard(status, ErrorDetail("m", "T", "p", code)).detail == ErrorDetail(
        "m", "invalid_request_error", "p", ours
    )


@pytest.mark.parametrize("where", ["code", "type"])
def test_an_exhausted_quota_is_not_worth_a_retry(where: str) -> None:
    error = heard(429, ErrorDetail("m", **{where: "insufficient_quota"}))
    assert error.headers == {"x-should-retry": "false"}
    assert (error.detail.type, error.detail.code) == ("insufficient_quota", "insufficient_quota")


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"retry_after": "7"}, {"retry-after": "7"}),
        ({"retry_after": "0.2"}, {"retry-after": "1"}),
        (
            {"retry_after_ms": "1500", "retry_after": "9"},
            {"retry-after": "2", "retry-after-ms": "1500"},
        ),
        ({"retry_after": "60"}, {"retry-after": "60"}),
        ({"retry_after": "90"}, {"retry-after": "90", "x-should-retry": "false"}),
        ({"retry_after": "soon"}, {}),
        ({}, {}),
    ],
)
def test_case_68_the_wait_is_passed_on(given_: dict[str, str], told: dict[str, str]) -> None:
    assert heard(429, None, **given_).headers == told


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 7 "}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "999999999"}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "0"}, 0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after-ms": "inf", "retry-after": "9"}, 9),
        ({"retry-after-ms": "nan", "retry-after": "9"}, 9),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90),
        ({"retry-after": "Thu, 05 Mar 2026 13:00:30 +0100"}, 30),
        ({"retry-after": "Thu, 05 Mar 2026 12:00:30 -0000"}, 30),
        ({"retry-after": "Thu, 05 Mar 2020 12:00:00 GMT"}, 0),
        ({"retry-after": "Thu, 05 Mar 2099 12:00:00 GMT"}, MAX_RETRY_AFTER_SECONDS),
    ],
)
def test_case_70_every_form_of_a_wait_is_read(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "7 s",
        "0x10",
        "Thu, 05 Foo 2026",
        "Thu",
        "Thu, 32 Mar 2026 12:00:00 GMT",
        "5 Mar 2026 99:00:00 GMT",
        "é",
        "\x00",
        "1 Jan 99999999999999999999 00:00:00",
        "1 Jan 2026 99999999999999999:1:1",
    ],
)
def test_case_70_garbage_is_no_wait(text: str) -> None:
    assert retry_after({"retry-after": text}, NOW) is None


@given(text=st.text() | st.from_regex(r"\w{3}, \d+ (Jan|Feb) \d+ \d+:\d+:\d+ ([+-]\d+|GMT)"))
def test_case_70_no_text_raises_or_passes_the_cap(text: str) -> None:
    seconds = retry_after({"retry-after": text, "retry-after-ms": text}, NOW)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_SECONDS


def test_a_refused_request_names_its_parameter() -> None:
    error = GatewayError.of_request(InvalidRequest("bad", "n", "invalid_value"))
    assert (error.status, error.detail.param, error.detail.code) == (400, "n", "invalid_value")


@pytest.mark.parametrize(("code", "status"), [("model_not_found", 404), ("unsupported_tier", 400)])
def test_only_an_unknown_model_is_a_404(code: str, status: int) -> None:
    assert GatewayError.of_routing(RoutingRefused("no", "model", code)).status == status


def test_case_89_a_401_says_nothing_of_the_key() -> None:
    error = GatewayError.unauthenticated()
    assert (error.status, error.detail.param, error.detail.code) == (401, None, "invalid_api_key")
