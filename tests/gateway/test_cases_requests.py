"""Requests: cases 54, 59 to 62, 66, 67, 73, 86, 88, 89 and 91, over every operation and kind."""

from __future__ import annotations

import base64
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import unpack
from typing import Any

import httpx
import pytest

from tests.harness.asking import BILLABLE, ENDPOINTS, body, post
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Call, Upstream, completion

KINDS = ["vllm-alias", "openai-alias"]


@pytest.mark.parametrize(
    ("model", "name"), [("vllm-alias", "max_completion_tokens"), ("openai-alias", "max_tokens")]
)
@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 7},
        {"max_completion_tokens": 7},
        {"max_completion_tokens": 7, "max_tokens": 99},
    ],
)
def test_case_54_one_bound_under_the_name_that_the_upstream_takes(
    http: httpx.Client, upstream: Upstream, model: str, name: str, given: dict[str, int]
) -> None:
    marker = f"case54-{model}-{json.dumps(given)}-end"
    request = body("chat", model, marker)
    del request["max_tokens"]
    assert http.post("/v1/chat/completions", json={**request, **given}).status_code == 200
    sent = upstream.call_with(json.dumps(marker)[1:-1]).json
    limits = {key: sent[key] for key in ("max_tokens", "max_completion_tokens") if key in sent}
    assert limits == {name: 7}


def test_completions_send_max_tokens_to_every_kind(http: httpx.Client, upstream: Upstream) -> None:
    for model in KINDS:
        post(http, "completions", model, f"legacy-{model}")
        assert upstream.call_with(f"legacy-{model}").json["max_tokens"] == 20


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("wanted", ["base64", "float", None])
@pytest.mark.parametrize("given", ["base64", "float"])
def test_cases_59_and_60_embeddings_come_in_the_encoding_asked_for(
    http: httpx.Client, upstream: Upstream, model: str, wanted: str | None, given: str
) -> None:
    marker = f"case59-{model}-{wanted}-{given}-end"
    encoded = base64.b64encode(b"\x00\x00\x00\x3f\x00\x00\x80\xbf").decode()
    vector: Any = encoded if given == "base64" else [0.5, -1.0]

    def script(call: Call) -> None:
        item = {"object": "embedding", "index": 0, "embedding": vector}
        usage = {"prompt_tokens": 2, "total_tokens": 2}
        call.respond(200, {"object": "list", "data": [item], "model": "m", "usage": usage})

    upstream.on(marker, script)
    more: dict[str, Any] = {} if wanted is None else {"encoding_format": wanted}
    answer = post(http, "embeddings", model, marker, **more).json()
    embedding = answer["data"][0]["embedding"]
    if wanted == "base64":
        assert unpack("<2f", base64.b64decode(embedding)) == (0.5, -1.0)
    else:
        assert embedding == [0.5, -1.0]
    asked = upstream.call_with(marker).json.get("encoding_format")
    assert asked == ("float" if wanted == "base64" and model == "openai-alias" else wanted)


def test_case_60_an_unknown_encoding_is_refused(http: httpx.Client) -> None:
    response = post(http, "embeddings", "simulated", "x", encoding_format="hex")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "encoding_format"


@pytest.mark.parametrize("model", ["simulated", "vllm-alias", "openai-alias"])
def test_case_62_a_token_array_is_one_input(http: httpx.Client, model: str) -> None:
    response = http.post("/v1/embeddings", json={"model": model, "input": [15339, 1917]})
    assert response.status_code == 200
    assert len(response.json()["data"]) == 1


@pytest.mark.parametrize(
    "value", [[], "", ["a", ""], [[]], ["x"] * 2049, None, 7, {"a": 1}, [1.5], [["a"]]]
)
def test_inputs_that_no_upstream_takes_are_refused_by_name(http: httpx.Client, value: Any) -> None:
    response = http.post("/v1/embeddings", json={"model": "simulated", "input": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
def test_case_66_compressed_upstream_answers_arrive_plain_with_right_lengths(
    http: httpx.Client, upstream: Upstream, operation: str, stream: bool
) -> None:
    marker = f"case66-{operation}-{stream}-end"

    def script(call: Call) -> None:
        if stream:
            text = b'data: {"choices":[{"index":0,"delta":{"content":"hello"},"text":"hello"}]}\n\n'
            text += b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            call.respond(
                200, gzip.compress(text), {"content-encoding": "gzip"}, "text/event-stream"
            )
            return
        answer = completion("m") if operation != "embeddings" else {
            "object": "list", "data": [{"embedding": [1.0], "index": 0}], "model": "m",
            "usage": {"prompt_tokens": 1},
        }  # fmt: skip
        call.respond(200, gzip.compress(json.dumps(answer).encode()), {"content-encoding": "gzip"})

    upstream.on(marker, script)
    response = post(http, operation, "openai-alias", marker, stream)
    assert response.status_code == 200
    assert "content-encoding" not in response.headers
    assert "hello" in response.text or operation == "embeddings"
    if not stream:
        assert int(response.headers["content-length"]) == len(response.content)


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
def test_case_67_compressed_requests_are_refused_with_415(
    http: httpx.Client, operation: str, stream: bool
) -> None:
    path, _ = ENDPOINTS[operation]
    text = json.dumps(body(operation, "simulated", "x", stream)).encode()
    response = http.post(path, content=gzip.compress(text), headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_encoding"


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
@pytest.mark.parametrize("field", ["api_base", "base_url", "api_key", "kv_transfer_params"])
def test_case_86_callers_cannot_redirect_the_upstream_call(
    http: httpx.Client, upstream: Upstream, operation: str, stream: bool, field: str
) -> None:
    marker = f"case86-{operation}-{stream}-{field}-end"
    more = {field: "http://169.254.169.254/"}
    response = post(http, operation, "openai-alias", marker, stream, **more)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert upstream.calls_with(marker) == []


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
def test_case_88_provider_secrets_reach_no_answer_and_no_log(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, operation: str, stream: bool
) -> None:
    marker = f"case88-{operation}-{stream}-end"
    leak = (
        "call to https://api.example/v1?key=URL-SECRET failed for PROVIDER-SECRET-KEY,"
        " Authorization: Bearer PROVIDER-SECRET-KEY"
    )
    upstream.on(marker, lambda call: call.respond(400, {"error": {"message": leak}}))
    refused = post(http, operation, "refused", marker, stream)
    failed = post(http, operation, "openai-alias", marker, stream)
    assert refused.status_code == 502
    assert failed.status_code == 400
    record = gateway.record(failed.headers["x-request-id"])
    for text in (refused.text, failed.text, gateway.log_text(), json.dumps(record)):
        assert "SECRET" not in text
    assert "[redacted]" in failed.text


@pytest.mark.parametrize(("operation", "stream"), BILLABLE)
@pytest.mark.parametrize("key", ["sk-unknown-key-material", "x", None])
def test_case_89_a_bad_key_is_a_401_without_its_text(
    gateway: Gateway, operation: str, stream: bool, key: str | None
) -> None:
    path, _ = ENDPOINTS[operation]
    response = gateway.request("POST", path, body(operation, "simulated", "x", stream), key=key)
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_api_key", None)
    assert "key-material" not in response.text + gateway.log_text()


@pytest.mark.slow
def test_case_91_users_and_unknown_models_make_no_new_series(
    gateway: Gateway, http: httpx.Client
) -> None:
    def series() -> int:
        return len(gateway.request("GET", "/metrics", key=None).text.splitlines())

    def junk(number: int) -> None:
        headers = {"authorization": f"Bearer {TEAM_KEY}"}
        request = {"user": f"user-{number}", "max_tokens": 1, "messages": [{"role": "user"}]}
        known = {**request, "model": "simulated", "x-tier": "interactive"}
        pool.post("/v1/chat/completions", json={**request, "model": f"m{number}"}, headers=headers)
        pool.post("/v1/chat/completions", json=known, headers=headers)

    with httpx.Client(base_url=gateway.url, timeout=30) as pool:
        junk(0)
        before = series()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(junk, range(1, 300)))
    assert series() == before


BAD = [
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 10_000_000}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"n": 0}, "n"),
    ({"x-tier": "gold"}, "x-tier"),
    ({"x-team-id": "somebody-else"}, "x-team-id"),
    ({"model": "batch-only"}, "x-tier"),
]


@pytest.mark.parametrize("operation", ["chat", "completions"])
@pytest.mark.parametrize(("change", "param"), BAD)
def test_bad_members_are_refused_by_name(
    http: httpx.Client, operation: str, change: dict[str, Any], param: str
) -> None:
    response = http.post(
        ENDPOINTS[operation][0], json={**body(operation, "simulated", "x"), **change}
    )
    assert response.status_code in (400, 403)
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"] or param in ("model", "x-tier")


@pytest.mark.parametrize("messages", [[], None, "hi", [{"content": "no role"}], [7]])
def test_messages_that_are_none_are_refused(http: httpx.Client, messages: Any) -> None:
    request = {"model": "simulated", "max_tokens": 5, "messages": messages}
    response = http.post("/v1/chat/completions", json=request)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("operation", ENDPOINTS)
@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 50_000]
)
def test_bodies_that_are_no_json_object_are_a_400(
    http: httpx.Client, operation: str, text: bytes
) -> None:
    response = http.post(ENDPOINTS[operation][0], content=text)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("operation", ENDPOINTS)
def test_a_body_over_the_limit_is_a_413(http: httpx.Client, operation: str) -> None:
    def unannounced() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    for content in (b" " * 1_000_001, unannounced()):
        response = http.post(ENDPOINTS[operation][0], content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_without_a_bound_the_first_team_has_a_default_and_others_are_refused(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, operation: str
) -> None:
    team = f"unbounded-{operation}"
    gateway.api("POST", "/admin/teams", {"name": team}, key=ADMIN_KEY)
    key = gateway.api("POST", f"/admin/teams/{team}/keys", {}, key=ADMIN_KEY)["key"]
    request = body(operation, "openai-alias", f"unbounded-{operation}-end")
    del request["max_tokens"]
    path, _ = ENDPOINTS[operation]
    assert http.post(path, json=request).status_code == 200
    assert upstream.call_with(f"unbounded-{operation}-end").json["max_tokens"] == 1024
    refused = eventually(
        lambda: (r := gateway.request("POST", path, request, key=key)).status_code != 401 and r
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("operation", ENDPOINTS)
def test_unknown_models_and_methods_and_paths(http: httpx.Client, operation: str) -> None:
    path, _ = ENDPOINTS[operation]
    unknown = post(http, operation, "no-such-model", "x")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert unknown.json()["error"]["param"] == "model"
    assert http.get(path).status_code == 405
    assert http.post("/v1/nothing", json={}).json()["error"]["code"] == "unknown_url"


def test_a_model_without_the_capability_is_refused(http: httpx.Client) -> None:
    for operation in ("completions", "embeddings"):
        response = post(http, operation, "chat-only", "x")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_members_reach_the_upstream_and_ours_do_not(
    http: httpx.Client, upstream: Upstream, model: str, stream: bool
) -> None:
    marker = f"passing-{model}-{stream}-end"
    more = {"top_k": 3, "structured_outputs": {"regex": "a+"}, "x-tier": "batch"}
    more["x-team-id"] = "default"
    assert post(http, "chat", model, marker, stream, **more).status_code == 200
    sent = upstream.call_with(marker).json
    assert sent["top_k"] == 3
    assert sent["structured_outputs"] == {"regex": "a+"}
    assert not any(name.startswith("x-") for name in sent)
    assert sent["model"] == "backend-model"


def test_headers_carry_tier_and_request_id(gateway: Gateway) -> None:
    response = gateway.request(
        "POST",
        "/v1/chat/completions",
        body("chat", "batch-only", "x"),
        headers={"x-tier": "batch", "x-team-id": "default"},
    )
    assert response.status_code == 200
    assert gateway.record(response.headers["x-request-id"])["tier"] == "batch"
    assert response.headers["x-model-used"] == "batch-only"


def test_every_response_has_a_request_id(gateway: Gateway) -> None:
    for method, path, key in [
        ("GET", "/v1/models", TEAM_KEY),
        ("GET", "/v1/models/none", TEAM_KEY),
        ("GET", "/nothing", None),
        ("POST", "/v1/chat/completions", None),
        ("GET", "/v1/usage", None),
    ]:
        assert gateway.request(method, path, key=key).headers["x-request-id"]


def test_logs_are_json_lines_without_prompts(gateway: Gateway, http: httpx.Client) -> None:
    marker = "a very private prompt"
    request_id = post(http, "chat", "simulated", marker).headers["x-request-id"]
    lines = eventually(
        lambda: [line for line in gateway.log_text().splitlines() if request_id in line]
    )
    assert json.loads(lines[0])["team_id"]
    assert marker not in gateway.log_text()
    assert TEAM_KEY not in gateway.log_text()


def test_the_spool_directory_is_not_used_while_redis_is_there(gateway: Gateway) -> None:
    assert not list(Path(gateway.env["SLUICE_SPOOL_DIR"]).glob("*"))


def test_case_88_provider_secrets_reach_no_stream(http: httpx.Client, upstream: Upstream) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event({"choices": [{"index": 0, "delta": {"content": "word"}}]})
        call.event({"error": {"message": "bad key PROVIDER-SECRET-KEY at /v1?key=URL-SECRET"}})
        call.end()

    upstream.on("case88-in-stream", script)
    response = post(http, "chat", "openai-alias", "case88-in-stream", stream=True)
    assert "word" in response.text
    assert "[redacted]" in response.text
    assert "SECRET" not in response.text
