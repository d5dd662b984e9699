"""Errors as Anthropic's clients know them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest

from sluice.wire.errors import ErrorDetail
from sluice.wire.messages_errors import error_event, messages_error_body, messages_status


def error(status: int, **detail: Any) -> Any:
    return json.loads(messages_error_body(status, ErrorDetail("no", **detail), "req_1"))


def raised(status: int, body: bytes) -> anthropic.APIStatusError:
    """The SDK's exception for a response."""
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(
            status, content=body, headers={"content-type": "application/json"}
        )
    )
    with (
        httpx2.Client(transport=transport) as http,
        anthropic.Anthropic(
            api_key="k", base_url="http://gateway", http_client=http, max_retries=0
        ) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    assert error(status) == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "req_1",
    }


def test_n06_overload_is_the_sdks_overloaded_error() -> None:
    status = messages_status(503)
    body = messages_error_body(status, ErrorDetail("busy", code="server_is_overloaded"), "req_1")
    assert isinstance(raised(status, body), anthropic.OverloadedError)
    assert messages_status(502) == 502


def test_a_refused_thread_tells_the_sdk_to_send_everything() -> None:
    detail = ErrorDetail("no", "invalid_request_error", "thread", "thread_unsupported_request")
    got = raised(400, messages_error_body(400, detail, "req_1"))
    assert isinstance(got, anthropic.BadRequestError)
    assert got.error_code == "thread_unsupported_request"
    assert "details" not in error(400, code="invalid_value")["error"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("This model's maximum context length is 8 tokens.", None),
        ("too many tokens", "context_length_exceeded"),
    ],
)
def test_case_58_a_prompt_that_does_not_fit_is_said_in_anthropics_words(
    message: str, code: str | None
) -> None:
    body = messages_error_body(400, ErrorDetail(message, code=code), "req_1")
    assert json.loads(body)["error"]["message"] == f"prompt is too long: {message}"


def test_words_of_anthropics_own_are_kept() -> None:
    detail = ErrorDetail("prompt is too long: 9 > 8", code="context_length_exceeded")
    assert json.loads(messages_error_body(400, detail, "r"))["error"]["message"] == detail.message


@pytest.mark.parametrize(
    ("detail", "kind"),
    [
        (ErrorDetail("no", "overloaded_error"), "overloaded_error"),
        (ErrorDetail("no", "invalid_request_error"), "invalid_request_error"),
        (ErrorDetail("no", code="upstream_timeout"), "timeout_error"),
        (ErrorDetail("no", "insufficient_quota"), "rate_limit_error"),
        (ErrorDetail("no", code="server_is_overloaded"), "overloaded_error"),
        (ErrorDetail("no", code="upstream_connection_lost"), "api_error"),
        (ErrorDetail("no", "BadRequestError"), "api_error"),
    ],
)
def test_case_34_errors_in_a_stream_keep_their_kind(detail: ErrorDetail, kind: str) -> None:
    name, data = error_event(detail).decode().removesuffix("\n\n").split("\n")
    assert name == "event: error"
    body = json.loads(data.removeprefix("data: "))
    assert body == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_an_event_may_carry_the_request_id() -> None:
    assert b'"request_id":"req_1"' in error_event(ErrorDetail("no"), "req_1")
