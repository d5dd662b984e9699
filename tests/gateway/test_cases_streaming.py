"""Streams: cases 21, 22, 25 to 31, 35, 37, 39 of the conformance suite, over every kind."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.gateway import Gateway
from tests.harness.upstream import Call, Upstream, chunk, completion, stream_in_full, usage_chunk

MODELS = ["vllm-alias", "openai-alias"]


def ask(marker: str, model: str, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": marker}],
        "max_tokens": 50,
        **more,
    }


def raw_events(http: httpx.Client, body: dict[str, Any]) -> tuple[httpx.Response, list[str]]:
    response = http.post("/v1/chat/completions", json=body)
    return response, [part for part in response.text.split("\n\n") if part]


@pytest.mark.parametrize("model", MODELS)
def test_case_21_unasked_usage_is_recorded_and_stripped(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, model: str
) -> None:
    response, events = raw_events(http, ask(f"case21-{model}", model, stream=True))
    assert upstream.call_with(f"case21-{model}").json["stream_options"]["include_usage"] is True
    assert events[-1] == "data: [DONE]"
    assert "usage" not in response.text
    record = gateway.record(response.headers["x-request-id"])
    assert (record["input_tokens"], record["output_tokens"]) == (11, 7)
    assert record["estimated"] is False


@pytest.mark.parametrize("model", MODELS)
def test_asked_usage_is_one_chunk_with_empty_choices_before_done(
    http: httpx.Client, model: str
) -> None:
    body = ask("usage", model, stream=True, stream_options={"include_usage": True})
    _, events = raw_events(http, body)
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 18
    assert sum('"usage":{' in event for event in events) == 1


@pytest.mark.parametrize("model", MODELS)
def test_case_22_missing_usage_is_estimated_and_flagged(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, model: str
) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("backend-model", {"role": "assistant", "content": "four and twenty"}))
        call.event(chunk("backend-model", {}, "stop"))
        call.event("[DONE]")
        call.end()

    upstream.on(f"case22-{model}", script)
    response, _ = raw_events(http, ask(f"case22-{model}", model, stream=True))
    record = gateway.record(response.headers["x-request-id"])
    assert record["estimated"] is True
    assert record["output_tokens"] == 4
    assert record["input_tokens"] > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_case_25_the_alias_is_the_model_in_both_modes(
    http: httpx.Client, model: str, stream: bool
) -> None:
    response = http.post("/v1/chat/completions", json=ask("case25", model, stream=stream))
    assert "backend-model" not in response.text
    assert f'"model":"{model}"' in response.text


@pytest.mark.parametrize("model", MODELS)
def test_cases_26_and_27_empty_events_and_foreign_fields_are_never_relayed(
    http: httpx.Client, upstream: Upstream, model: str
) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.chunk(b": hello\n\nretry: 3000\n\nid: 7\n\ndata:\n\ndata: \n\n")
        call.chunk(b"id: 8\ndata: " + json.dumps(chunk("m", {"content": "x"})).encode() + b"\n\n")
        call.event(chunk("m", {}, "stop"))
        call.event("[DONE]")
        call.end()

    upstream.on(f"case26-{model}", script)
    _, events = raw_events(http, ask(f"case26-{model}", model, stream=True))
    assert len(events) == 3
    assert all(event.startswith("data: ") for event in events)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_cases_29_and_30_any_framing_split_anywhere_gives_the_same_text(
    gateway: Gateway, client: OpenAI, upstream: Upstream, ending: str, space: str, size: int
) -> None:
    marker = f"case29-{ending!r}-{space!r}-{size}-end"
    bodies = [
        chunk("m", {"role": "assistant", "content": ""}),
        chunk("m", {"content": "你好"}),
        chunk("m", {"content": "😀 ok"}),
        chunk("m", {}, "stop"),
        usage_chunk("m"),
    ]
    texts = [json.dumps(body, ensure_ascii=False) for body in bodies] + ["[DONE]"]
    data = "".join(f"data:{space}{text}{ending}{ending}" for text in texts).encode()

    def script(call: Call) -> None:
        call.start_stream()
        for start in range(0, len(data), size):
            call.chunk(data[start : start + size])
        call.end()

    upstream.on(json.dumps(marker)[1:-1], script)
    with client.chat.completions.with_streaming_response.create(
        model="vllm-alias",
        messages=[{"role": "user", "content": marker}],
        max_tokens=9,
        stream=True,
    ) as response:
        request_id = response.headers["x-request-id"]
        text = "".join(
            part.choices[0].delta.content or "" for part in response.parse() if part.choices
        )
    assert text == "你好😀 ok"
    assert gateway.record(request_id)["output_tokens"] == 7


def broken(how: str, call: Call) -> None:
    call.start_stream()
    call.event(chunk("m", {"role": "assistant", "content": "one "}))
    call.event(chunk("m", {"content": "two"}))
    if how == "reset":
        time.sleep(0.05)
        call.reset()
    elif how == "close":
        call.close()
    elif how == "end":
        call.end()
    elif how == "done":
        call.event("[DONE]")
        call.end()
    elif how == "garbage":
        call.chunk(b"data: {nonsense\n\n")
        call.end()
    elif how == "error":
        call.event({"error": {"message": "engine died", "type": "x", "code": 500}})
        call.event("[DONE]")
        call.end()
    elif how == "abort":
        call.event(chunk("m", {}, "abort"))
        call.event("[DONE]")
        call.end()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", ["reset", "close", "end", "done", "garbage", "error", "abort"])
def test_case_31_a_stream_that_breaks_ends_with_an_error_and_is_billed(
    gateway: Gateway, client: OpenAI, upstream: Upstream, model: str, how: str
) -> None:
    marker = f"case31-{model}-{how}-end"
    upstream.on(marker, lambda call: broken(how, call))
    text = ""
    with client.chat.completions.with_streaming_response.create(
        model=model, messages=[{"role": "user", "content": marker}], max_tokens=50, stream=True
    ) as response:
        lines = list(response.iter_lines())
        request_id = response.headers["x-request-id"]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(c["delta"].get("content", "") for e in events[:-1] for c in e["choices"])
    assert text == "one two"
    assert events[-1]["error"]["message"]
    assert "data: [DONE]" not in lines
    assert not any(c["finish_reason"] for e in events[:-1] for c in e["choices"])
    record = gateway.record(request_id)
    assert record["status"] == "error"
    assert record["error_code"]
    assert record["output_tokens"] == 2


def test_case_31_the_sdk_raises(client: OpenAI, upstream: Upstream) -> None:
    upstream.on("case31-sdk", lambda call: broken("close", call))
    stream = client.chat.completions.create(
        model="vllm-alias",
        messages=[{"role": "user", "content": "case31-sdk"}],
        max_tokens=5,
        stream=True,
    )
    with pytest.raises(openai.APIError):
        list(stream)


@pytest.mark.parametrize("model", MODELS)
def test_case_35_an_error_as_the_first_event_is_a_plain_error(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, model: str
) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event({"error": {"message": "overloaded", "code": None}})
        call.end()

    upstream.on(f"case35-{model}", script)
    response = http.post("/v1/chat/completions", json=ask(f"case35-{model}", model, stream=True))
    assert response.status_code == 502
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["message"] == "overloaded"
    assert gateway.record(response.headers["x-request-id"])["status"] == "error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["refused", "closed", "html", "not-json", "error-in-200"])
def test_case_37_a_lost_upstream_is_a_502_in_openai_form(
    gateway: Gateway, http: httpx.Client, upstream: Upstream, how: str, stream: bool
) -> None:
    marker = f"case37-{how}-{stream}-end"

    def script(call: Call) -> None:
        if how == "closed":
            call.close()
        elif how == "html":
            call.respond(502, b"<html>bad gateway</html>", content_type="text/html")
        elif how == "not-json":
            call.respond(200, b"<html>hello</html>", content_type="text/html")
        else:
            call.respond(200, {"error": {"message": "no", "code": 500}})

    upstream.on(marker, script)
    model = "refused" if how == "refused" else "openai-alias"
    response = http.post("/v1/chat/completions", json=ask(marker, model, stream=stream))
    assert response.status_code == 502
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    record = gateway.record(response.headers["x-request-id"])
    assert (record["status"], record["attempts"]) == ("error", 3)


def test_case_37_the_next_deployment_answers_when_the_first_is_lost(
    gateway: Gateway, http: httpx.Client
) -> None:
    response = http.post("/v1/chat/completions", json=ask("case37-fallback", "fallback"))
    assert response.status_code == 200
    record = gateway.record(response.headers["x-request-id"])
    assert record["attempts"] == 2
    assert record["deployment"] == "compatible/backend-model"


@pytest.mark.parametrize("model", MODELS)
def test_case_39_each_event_leaves_before_the_next_arrives(
    http: httpx.Client, upstream: Upstream, model: str
) -> None:
    seen: list[str] = []

    def script(call: Call) -> None:
        call.start_stream()
        for number in range(5):
            call.event(chunk("m", {"content": f"<{number}>"}))
            deadline = time.monotonic() + 5
            while len(seen) <= number and time.monotonic() < deadline:
                time.sleep(0.005)  # the client must have it before the next is even made
        call.event(chunk("m", {}, "stop" if len(seen) == 5 else "length"))
        call.event("[DONE]")
        call.end()

    upstream.on(f"case39-{model}", script)
    body = ask(f"case39-{model}", model, stream=True)
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if "<" in line:
                seen.append(line)
            if "finish_reason" in line and '"stop"' in line:
                break
        else:
            pytest.fail("events were held back")
    assert len(seen) == 5


def test_a_silent_stream_is_kept_alive_by_comments(
    client: OpenAI, http: httpx.Client, upstream: Upstream
) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("m", {"content": "a"}))
        time.sleep(1.6)
        call.event(chunk("m", {"content": "b"}))
        call.event(chunk("m", {}, "stop"))
        call.event("[DONE]")
        call.end()

    upstream.on("heartbeat", script)
    response = http.post("/v1/chat/completions", json=ask("heartbeat", "openai-alias", stream=True))
    assert response.text.count(": keep-alive\n\n") >= 2
    sdk = client.chat.completions.create(
        model="openai-alias",
        messages=[{"role": "user", "content": "heartbeat"}],
        max_tokens=5,
        stream=True,
    )
    assert "".join(part.choices[0].delta.content or "" for part in sdk) == "ab"


def test_a_finish_without_an_end_marker_is_complete(http: httpx.Client, upstream: Upstream) -> None:
    def script(call: Call) -> None:
        call.start_stream()
        call.event(chunk("m", {"content": "a"}))
        call.event(chunk("m", {}, "stop"))
        call.end()

    upstream.on("no-marker", script)
    _, events = raw_events(http, ask("no-marker", "openai-alias", stream=True))
    assert events[-1] == "data: [DONE]"


def test_a_client_that_waits_for_nothing_gets_the_end_before_the_upstream_closes(
    http: httpx.Client, upstream: Upstream
) -> None:
    def script(call: Call) -> None:
        stream_in_full(call)
        call.wait_for_client_to_leave(5)

    upstream.on("lingering", script)
    started = time.monotonic()
    _, events = raw_events(http, ask("lingering", "openai-alias", stream=True))
    assert events[-1] == "data: [DONE]"
    assert time.monotonic() - started < 4


def test_connections_to_the_upstream_are_reused_after_streams(
    http: httpx.Client, upstream: Upstream
) -> None:
    for _ in range(3):
        raw_events(http, ask("reuse-me", "openai-alias", stream=True))
    ports = {id(call.connection) for call in upstream.calls_with("reuse-me")}
    assert len(ports) == 1


def test_whole_answers_are_byte_exact_but_for_the_model(
    http: httpx.Client, upstream: Upstream
) -> None:
    exact = json.dumps(completion("backend-model"), indent=3).encode()
    big = exact.replace(b'"created":', b'"big": 123456789012345678901234567890.10,\n"created":')
    upstream.on("byte-exact", lambda call: call.respond(200, big))
    response = http.post("/v1/chat/completions", json=ask("byte-exact", "openai-alias"))
    assert b"123456789012345678901234567890.10" in response.content
    assert response.json()["model"] == "openai-alias"
