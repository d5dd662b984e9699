"""A: credentials, statuses, retries and headers, as OpenAI's SDK sees them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.contract.conftest import KINDS
from tests.contract.scripts import answering, ask
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.upstream import Call, Script, Upstream


def failing(status: int, headers: dict[str, str], **error: Any) -> Script:
    """A script of the upstream's refusal, in the format of the path."""

    def script(call: Call) -> None:
        detail = {"message": "told you", "type": "some_error", "param": None, "code": None, **error}
        call.respond(status, {"type": "error", "error": detail}, headers)

    return script


def refused_with(
    client: OpenAI, scripted: Upstream, name: str, kind: str, script: Script
) -> openai.APIStatusError:
    """What comes of a refusal by the test's own upstream."""
    marker = f"refused-{name}-{kind}-end"
    scripted.on(marker, script)
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**ask(marker, f"{name}-{kind}"))
    return raised.value


def test_a01_no_key_is_an_authentication_error_at_once(site: Gateway, tried: list[Any]) -> None:
    http = DefaultHttpxClient(event_hooks={"request": [tried.append]})
    keyless: Any = {"Authorization": openai.Omit()}
    with (
        OpenAI(base_url=f"{site.url}/v1", api_key="unused", http_client=http) as client,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        client.chat.completions.create(**ask("a01", "vllm"), extra_headers=keyless)
    assert "authorization" not in tried[0].headers
    assert raised.value.status_code == 401
    assert len(tried) == 1


def test_a02_a_bad_key_is_told_as_one(site: Gateway) -> None:
    with (
        OpenAI(base_url=f"{site.url}/v1", api_key="sk-nobody") as client,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        client.chat.completions.create(**ask("a02", "vllm"))
    assert raised.value.code == "invalid_api_key"
    assert raised.value.type == "invalid_request_error"
    assert "sk-nobody" not in raised.value.response.text


def test_a03_an_unknown_model_is_named(sdk: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.chat.completions.create(**ask("a03", "no-such-model"))
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a04_an_unknown_route_is_a_404_in_json(bare: httpx.Client, method: str) -> None:
    response = bare.request(method, "/v1/no/such/route", json={})
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("application/json")
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "responses"])
@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"nonsense", b'{"model": "vllm",}'])
def test_a05_malformed_json_is_a_400(bare: httpx.Client, path: str, body: bytes) -> None:
    response = bare.post(f"/v1/{path}", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", KINDS)
def test_a06_no_messages_name_the_parameter(sdk: OpenAI, kind: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model=kind, messages=[], max_tokens=5)
    assert raised.value.param == "messages"


@pytest.mark.parametrize("kind", KINDS)
def test_a07_a_limit_is_retried_after_the_upstreams_wait(
    patient: OpenAI, tried: list[Any], scripted: Upstream, kind: str
) -> None:
    script = failing(429, {"retry-after-ms": "40"}, type="rate_limit_error")
    error = refused_with(patient, scripted, "a07", kind, script)
    assert isinstance(error, openai.RateLimitError)
    assert 30 <= int(error.response.headers["retry-after-ms"]) <= 40
    assert len(tried) == 3


def test_a08_a_wait_of_more_than_two_minutes_is_not_retried(
    patient: OpenAI, tried: list[Any], scripted: Upstream
) -> None:
    error = refused_with(patient, scripted, "a08", "vllm", failing(429, {"retry-after": "121"}))
    assert error.response.headers["retry-after"] == "121"
    assert len(tried) == 1


def test_a09_an_exhausted_quota_is_not_retried(
    patient: OpenAI, tried: list[Any], scripted: Upstream
) -> None:
    script = failing(429, {}, type="insufficient_quota", code="insufficient_quota")
    error = refused_with(patient, scripted, "a09", "compatible", script)
    assert error.response.headers["x-should-retry"] == "false"
    assert error.code == "insufficient_quota"
    assert len(tried) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [503, 529])
def test_a10_an_overload_is_a_503_and_retried(
    patient: OpenAI, tried: list[Any], scripted: Upstream, kind: str, status: int
) -> None:
    script = failing(status, {"retry-after-ms": "10"}, type="overloaded_error")
    error = refused_with(patient, scripted, f"a10-{status}", kind, script)
    assert error.status_code == 503
    assert error.code == "server_is_overloaded"
    assert len(tried) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a11_html_from_the_upstream_becomes_a_json_error(
    sdk: OpenAI, scripted: Upstream, kind: str, stream: bool
) -> None:
    marker = f"a11-{kind}-{stream}-end"
    page = b"<html>bad gateway</html>"
    scripted.on(marker, lambda call: call.respond(502, page, content_type="text/html"))
    with pytest.raises(openai.InternalServerError) as raised:
        sdk.chat.completions.create(**ask(marker, kind, stream=stream))
    assert raised.value.status_code == 502
    assert raised.value.response.headers["content-type"] == "application/json"
    assert raised.value.body
    assert "<html>" not in raised.value.response.text


@pytest.mark.parametrize("kind", KINDS)
def test_a12_every_response_has_the_request_id(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("a12", answering())
    raw = sdk.chat.completions.with_raw_response.create(**ask("a12", kind))
    assert raw.headers["x-request-id"]
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    streamed = sdk.chat.completions.with_raw_response.create(**ask("a12", kind, stream=True))
    assert streamed.headers["x-request-id"] not in ("", raw.headers["x-request-id"])
    list(streamed.parse())
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.models.retrieve("none")
    assert raised.value.request_id == raised.value.response.headers["x-request-id"]


def test_a13_a_body_over_the_limit_is_a_413(sdk: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        sdk.chat.completions.create(**ask("x" * 1_000_001, "vllm"))
    assert raised.value.status_code == 413
    assert raised.value.code == "request_too_large"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403])
def test_a14_our_own_key_being_refused_is_never_a_401(
    patient: OpenAI, tried: list[Any], scripted: Upstream, kind: str, status: int
) -> None:
    script = failing(status, {}, type="authentication_error", message="no: ANTHROPIC-SECRET")
    error = refused_with(patient, scripted, f"a14-{status}", kind, script)
    assert error.status_code == 502
    assert "SECRET" not in error.response.text
    assert len(tried) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a15_a_long_wait_is_said_to_be_not_worth_a_retry(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    script = failing(429, {"retry-after": "90"}, type="rate_limit_error")
    error = refused_with(sdk, scripted, "a15", kind, script)
    assert error.response.headers["retry-after"] == "90"
    assert error.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("kind", KINDS)
def test_a16_unknown_headers_are_ignored_and_stay_here(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    marker = f"a16-{kind}-end"
    scripted.on(marker, answering())
    headers = {"x-unheard-of": "yes", "OpenAI-Organization": "org", "x-stainless-more": "1"}
    answer = sdk.chat.completions.create(**ask(marker, kind), extra_headers=headers)
    assert answer.choices[0].message.content == "hello"
    sent = scripted.call_with(marker).headers
    assert not {"x-unheard-of", "openai-organization", "x-stainless-more"} & set(sent)
    assert not any(TEAM_KEY in value for value in sent.values())
