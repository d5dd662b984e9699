"""One answer a key: case 85, I01 to I06, over every operation and kind of provider."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from sluice.backends.base import Endpoint
from sluice.gateway.idempotency.key import entry_name
from sluice.gateway.idempotency.scripts import BYTES, PREFIX, TAPE
from tests.contract.scripts import answering
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.twins import MAX_BYTES, MODELS, OPERATIONS, Slow, Twins, answer_all, body_of
from tests.harness.upstream import Call, chunk, completion

CHAT = "/v1/chat/completions"


def served() -> list[Any]:
    """Model, operation, path, mode: everything that some upstream does."""
    native = {"embeddings", "completions", "moderations"}
    return [
        pytest.param(name, *given, id=f"{name}-{given[0]}-{'stream' if given[2] else 'whole'}")
        for name, capabilities in MODELS.items()
        for given in OPERATIONS
        if given[0] not in native or given[0] in capabilities
    ]


def script_for(operation: str) -> Callable[[Call], None]:
    return answering() if operation in ("chat", "messages", "responses") else answer_all


@pytest.mark.parametrize(("name", "operation", "path", "stream"), served())
def test_the_same_request_is_answered_once(
    twins: Twins, name: str, operation: str, path: str, stream: bool
) -> None:
    marker = f"once-{name}-{operation}-{stream}-end"
    if operation == "completions" and stream:
        twins.upstream.on(marker, completions_stream)
    else:
        twins.upstream.on(marker, script_for(operation))
    body = body_of(operation, name, marker, stream)
    first = twins.post(marker, body, path)
    again = [twins.post(marker, body, path, gateway) for gateway in (twins.one, twins.other)]
    assert first.status_code == 200, first.text
    assert "idempotency-replayed" not in first.headers
    assert len(twins.upstream.calls_with(marker)) == 1
    original = first.headers["x-request-id"]
    assert twins.one.record(original)["status"] == "ok"
    for answer in again:
        assert (answer.status_code, answer.content) == (200, first.content)
        assert answer.headers["content-type"] == first.headers["content-type"]
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.headers["x-original-request-id"] == original
        assert answer.headers["x-request-id"] != original
        assert (
            answer.headers.get("request-id", answer.headers["x-request-id"])
            == (answer.headers["x-request-id"])
        )
        assert twins.rows(answer.headers["x-request-id"]) == []
    assert len(twins.rows(original)) == 1
    changed = twins.post(marker, {**body, "user": "somebody else"}, path, twins.other)
    assert changed.status_code == 422
    if operation == "messages":
        assert changed.json()["type"] == "error"
        assert "Idempotency-Key" in changed.json()["error"]["message"]
    else:
        assert changed.json()["error"]["code"] == "idempotency_key_reused"
        assert changed.json()["error"]["param"] == "Idempotency-Key"


def completions_stream(call: Call) -> None:
    call.start_stream()
    for text, finish in (("hel", None), ("lo", "stop")):
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
        call.event({"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]})
    call.event("[DONE]")
    call.end()


def test_the_order_of_members_and_the_spelling_of_the_key_do_not_matter(twins: Twins) -> None:
    marker = "spelling-end"
    body = body_of("chat", "compatible", marker)
    first = twins.post(marker, body)
    turned = dict(reversed(body.items()))
    headers = {"idempotency_key": f'"{marker}"'}
    again = twins.other.request("POST", CHAT, turned, headers=headers)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert len(twins.upstream.calls_with(marker)) == 1


@pytest.mark.parametrize(
    ("what", "changed"),
    [("stream", {"stream": True}), ("tier", {"x-tier": "batch"})],
)
def test_whatever_the_answer_depends_on_is_part_of_the_request(
    twins: Twins, what: str, changed: dict[str, Any]
) -> None:
    marker = f"depends-{what}-end"
    body = body_of("chat", "compatible", marker)
    assert twins.post(marker, body).status_code == 200
    assert twins.post(marker, {**body, **changed}).status_code == 422


def test_headers_that_travel_or_steer_are_part_of_the_request(twins: Twins) -> None:
    marker = "steering-end"
    twins.upstream.on(marker, answering())
    body = body_of("messages", "claude", marker)
    version = {"anthropic-version": "2023-06-01"}

    def ask(**more: str) -> httpx.Response:
        return twins.post(marker, body, "/v1/messages", headers=version | more)

    first = ask()
    assert first.status_code == 200
    assert ask().content == first.content
    assert ask(**{"anthropic-beta": "new"}).status_code == 422
    assert ask(**{"x-tier": "batch"}).status_code == 422


def test_teams_and_endpoints_have_keys_of_their_own(twins: Twins) -> None:
    marker = "scope-end"
    body = body_of("chat", "compatible", marker)
    twins.post(marker, body)
    theirs = twins.new_team("idempotency-others")
    foreign = eventually(
        lambda: (answer := twins.post(marker, body, team_key=theirs)).status_code == 200 and answer
    )
    assert "idempotency-replayed" not in foreign.headers
    twins.post(marker, body_of("completions", "compatible", marker), "/v1/completions")
    assert len(twins.upstream.calls_with(marker)) == 3


def test_a_key_of_the_team_that_may_not_use_the_model_hears_nothing_of_its_answers(
    twins: Twins,
) -> None:
    marker = "model-policy-end"
    team_key = twins.new_team("idempotency-policy")
    body = body_of("chat", "compatible", marker)
    eventually(lambda: twins.post(marker, body, team_key=team_key).status_code == 200)
    twins.limit(team_key, {"allowed_models": ["vllm"]})
    refused = eventually(
        lambda: (
            (answer := twins.post(marker, body, team_key=team_key)).status_code != 200 and answer
        )
    )
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "model_not_allowed"


def test_limits_count_generations_and_not_those_who_hear_them(twins: Twins) -> None:
    marker = "limited-team-end"
    team_key = twins.new_team("idempotency-limits")
    twins.limit(team_key, {"requests_per_minute": 2})
    for gateway in (twins.one, twins.other):
        eventually(lambda gateway=gateway: _requests_limited(gateway, team_key))  # type: ignore[misc]
    body = body_of("chat", "compatible", marker)
    for gateway in [twins.one, twins.other] * 3:
        assert twins.post(marker, body, CHAT, gateway, team_key).status_code == 200
    assert twins.post("second", body, team_key=team_key).status_code == 200
    refused = twins.post("third", body, team_key=team_key)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    replayed = twins.post(marker, body, team_key=team_key)
    assert replayed.status_code == 200
    assert "x-ratelimit-remaining-requests" not in replayed.headers


def _requests_limited(gateway: Gateway, team_key: str) -> bool:
    answer = gateway.request("GET", "/v1/limits", key=team_key)
    return answer.status_code == 200 and '"requests_per_minute":2' in answer.text.replace(" ", "")


@pytest.mark.parametrize(
    "key", ["", "x" * 256, "ключ".encode().decode("latin-1"), '"open', '"a"b', '"a\\b"', '""']
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_bad_keys_are_refused(twins: Twins, key: str, path: str) -> None:
    operation = "messages" if path == "/v1/messages" else "chat"
    body = body_of(operation, "compatible", "bad-key-end")
    answer = httpx.post(
        twins.one.url + path,
        json=body,
        headers=[
            (b"authorization", f"Bearer {TEAM_KEY}".encode()),
            (b"idempotency-key", key.encode("latin-1")),
        ],
    )
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["error"]["message"]
    if operation == "chat":
        assert answer.json()["error"]["param"] == "Idempotency-Key"


def test_who_is_unknown_learns_nothing_of_keys(twins: Twins) -> None:
    body = body_of("chat", "compatible", "x")
    answer = twins.post("some-key", body, team_key="sk-nobody")
    assert answer.status_code == 401


def test_the_longest_key_is_a_key(twins: Twins) -> None:
    key = "k" * 255
    body = body_of("chat", "compatible", "longest-end")
    assert twins.post(key, body).content == twins.post(f'"{key}"', body).content
    assert len(twins.upstream.calls_with("longest-end")) == 1


def _limited(call: Call) -> None:
    call.respond(429, {"error": {"message": "slow down"}})


def _failing(call: Call) -> None:
    call.respond(500, {"error": {"message": "no"}})


def _refusing(call: Call) -> None:
    call.respond(400, {"error": {"message": "unknown member", "param": "x"}})


def _breaking(call: Call) -> None:
    call.start_stream()
    call.event(chunk("m", {"role": "assistant", "content": "half an ans"}))
    call.close()


@pytest.mark.parametrize(
    ("failure", "stream", "status"),
    [
        (_failing, False, 502),
        (_failing, True, 502),
        (_refusing, False, 400),
        (_refusing, True, 400),
        (_breaking, True, 200),
        (_limited, False, 429),
    ],
)
def test_failures_are_not_kept(
    twins: Twins, failure: Callable[[Call], None], stream: bool, status: int
) -> None:
    marker = f"failure{failure.__name__}-{stream}-end"
    name = "vllm" if failure is _limited else "compatible"  # whose rest hurts nobody else
    twins.upstream.on(marker, failure)
    body = body_of("chat", name, marker, stream)
    first = twins.post(marker, body)
    assert first.status_code == status
    assert "[DONE]" not in first.text
    if status == 200:
        assert '"error"' in first.text
    twins.upstream.on(marker, answer_all)
    again = eventually(
        lambda: (
            (answer := twins.post(marker, body, gateway=twins.other)).status_code == 200 and answer
        ),
        15,
    )
    assert "idempotency-replayed" not in again.headers
    assert twins.post(marker, body).content == again.content
    assert twins.post(marker, body).headers["idempotency-replayed"] == "true"


def test_an_unknown_model_does_not_use_up_the_key(twins: Twins) -> None:
    marker = "unknown-model-end"
    assert twins.post(marker, body_of("chat", "nothing", marker)).status_code == 404
    assert twins.post(marker, body_of("chat", "compatible", marker)).status_code == 200


def test_those_who_wait_hear_the_failure(twins: Twins) -> None:
    marker = "shared-failure-end"
    go_on = threading.Event()

    def script(call: Call) -> None:
        go_on.wait(10)
        _failing(call)

    twins.upstream.on(marker, script)
    body = body_of("chat", "compatible", marker)
    before = _attached(twins)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(twins.post, marker, body, CHAT, gateway)
            for gateway in (twins.one, twins.other) * 2
        ]
        eventually(lambda: _attached(twins) == before + 3)
        go_on.set()
        answers = [one.result(20) for one in asked]
    assert {(one.status_code, one.content) for one in answers} == {
        (502, answers[0].content),
    }
    assert len(twins.upstream.calls_with(marker)) == 1


def _attached(twins: Twins) -> float:
    """Callers so far that came while their answer was generated."""
    return sum(
        gateway.metric("gw_idempotent_requests_total", result="running")
        for gateway in (twins.one, twins.other)
    )


def test_the_second_caller_gets_the_first_ones_answer_live(twins: Twins) -> None:
    """From its first event on, on either gateway, while it is generated."""
    marker = "attach-end"
    script = Slow()
    twins.upstream.on(marker, script)
    body = body_of("chat", "compatible", marker, stream=True)
    seen: dict[str, bytes] = {}

    def listen(name: str, gateway: Any) -> httpx.Headers:
        headers = {"authorization": f"Bearer {TEAM_KEY}", "idempotency-key": marker}
        with httpx.stream("POST", gateway.url + CHAT, json=body, headers=headers) as answer:
            for part in answer.iter_bytes():
                seen[name] = seen.get(name, b"") + part
            return answer.headers

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(listen, "first", twins.one)
        eventually(lambda: b"word" in seen.get("first", b""))
        second = pool.submit(listen, "second", twins.one)
        third = pool.submit(listen, "third", twins.other)
        eventually(lambda: all(b"word" in seen.get(name, b"") for name in ("second", "third")))
        assert not script.go_on.is_set()
        script.go_on.set()
        headers = [one.result(20) for one in (first, second, third)]
    assert len({_without_beats(text) for text in seen.values()}) == 1
    assert seen["third"].count(b"word") == 3
    original = headers[0]["x-request-id"]
    assert [one.get("x-original-request-id") for one in headers] == [None, original, original]
    assert len({one["x-request-id"] for one in headers}) == 3
    assert len(twins.upstream.calls_with(marker)) == 1
    assert twins.one.record(original)["status"] == "ok"


def _without_beats(text: bytes) -> bytes:
    return text.replace(b": keep-alive\n\n", b"")


@pytest.mark.parametrize("where", ["one", "other"])
def test_a_caller_may_rather_not_wait(twins: Twins, where: str) -> None:
    marker = f"no-wait-{where}-end"
    script = Slow()
    twins.upstream.on(marker, script)
    body = body_of("chat", "compatible", marker, stream=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(twins.post, marker, body)
        twins.upstream.call_with(marker)
        gateway = getattr(twins, where)
        unwilling = {"prefer": "respond-async, wait=0"}
        told = twins.post(marker, body, gateway=gateway, headers=unwilling)
        script.go_on.set()
        whole = first.result(20)
    assert told.status_code == 409
    assert told.headers["retry-after"] == "1"
    assert told.json()["error"]["code"] == "idempotency_in_progress"
    late = twins.post(marker, body, gateway=gateway, headers=unwilling)
    assert late.content == _without_beats(whole.content)


def test_an_answer_that_is_too_large_is_delivered_once_and_charged_once(twins: Twins) -> None:
    for stream in (False, True):
        marker = f"too-large-{stream}-end"

        def script(call: Call) -> None:
            if call.json.get("stream"):
                call.start_stream()
                for _ in range(60):
                    call.event(chunk("m", {"content": "w" * 10_000}))
                call.event(chunk("m", {}, "stop"))
                call.event("[DONE]")
                call.end()
            else:
                call.respond(200, completion("m", "w" * (MAX_BYTES + 200_000)))

        twins.upstream.on(marker, script)
        body = body_of("chat", "compatible", marker, stream)
        first = twins.post(marker, body)
        assert first.status_code == 200
        assert len(first.content) > MAX_BYTES
        assert first.text.endswith("[DONE]\n\n" if stream else "}")
        for gateway in (twins.one, twins.other):
            again = twins.post(marker, body, gateway=gateway)
            assert again.status_code == 409
            assert again.headers["x-should-retry"] == "false"
            assert again.json()["error"]["code"] == "idempotency_result_too_large"
        assert len(twins.upstream.calls_with(marker)) == 1
        assert twins.one.record(first.headers["x-request-id"])["status"] == "ok"
        assert twins.post(marker, {**body, "user": "else"}).status_code == 422


def test_redis_has_a_hash_of_the_key_for_a_day(twins: Twins) -> None:
    key = "readable-key-1234567890"
    body = body_of("chat", "compatible", "kept-end", stream=True)
    first = twins.post(key, body)
    team_id = twins.one.record(first.headers["x-request-id"])["team_id"]
    owner = first.headers["x-request-id"]
    with twins.redis() as redis:
        kept = [PREFIX + entry_name(team_id, Endpoint.CHAT, key), TAPE + owner, BYTES + owner]
        for name in kept:
            assert 86_000 < int(str(redis.ttl(name))) <= 86_400
        dump = b"".join(name + (redis.dump(name) or b"") for name in redis.scan_iter(f"{PREFIX}*"))
    assert key.encode() not in dump
    assert TEAM_KEY.encode() not in dump


def test_keys_are_in_no_log(twins: Twins) -> None:
    key = "logged-key-1234567890"
    body = body_of("chat", "compatible", "logged-end")
    twins.post(key, body)
    twins.post(key, {**body, "user": "x"})
    assert key not in twins.one.log_text()


def test_requests_without_a_key_leave_nothing(twins: Twins) -> None:
    with twins.redis() as redis:
        before = set(redis.scan_iter(f"{PREFIX}*"))
        body = body_of("chat", "compatible", "unkeyed-end")
        for _ in range(2):
            assert twins.one.request("POST", CHAT, body).status_code == 200
        assert set(redis.scan_iter(f"{PREFIX}*")) <= before
    assert len(twins.upstream.calls_with("unkeyed-end")) == 2


class TestSDKs:
    def test_openai(self, twins: Twins) -> None:
        marker = "sdk-openai-end"
        ask: dict[str, Any] = body_of("chat", "compatible", marker)
        key = {"idempotency-key": marker}
        with OpenAI(base_url=f"{twins.one.url}/v1", api_key=TEAM_KEY) as sdk:
            first = sdk.chat.completions.create(**ask, extra_headers=key)
            assert sdk.chat.completions.create(**ask, extra_headers=key) == first
            with pytest.raises(openai.UnprocessableEntityError) as reused:
                sdk.chat.completions.create(**{**ask, "user": "x"}, extra_headers=key)
            assert reused.value.code == "idempotency_key_reused"
            chunks = [
                list(sdk.chat.completions.create(**ask, stream=True, extra_headers=stream_key))
                for stream_key in [{"idempotency-key": marker + "-stream"}] * 2
            ]
        assert chunks[0] == chunks[1]
        assert len(twins.upstream.calls_with(marker)) == 2

    def test_a_conflict_is_retried_by_the_sdk_until_the_answer_is_there(self, twins: Twins) -> None:
        """I03."""
        marker = "sdk-conflict-end"
        go_on = threading.Event()

        def script(call: Call) -> None:
            go_on.wait(10)
            answer_all(call)

        twins.upstream.on(marker, script)
        ask: dict[str, Any] = body_of("chat", "compatible", marker)
        headers = {"idempotency-key": marker, "prefer": "wait=0"}
        conflicts = twins.one.metric("gw_idempotent_requests_total", result="in_progress")
        with (
            OpenAI(base_url=f"{twins.one.url}/v1", api_key=TEAM_KEY, max_retries=5) as sdk,
            ThreadPoolExecutor(2) as pool,
        ):
            create: Callable[..., Any] = sdk.chat.completions.create
            first = pool.submit(create, **ask, extra_headers=headers)
            twins.upstream.call_with(marker)
            second = pool.submit(create, **ask, extra_headers=headers)
            eventually(
                lambda: (
                    twins.one.metric("gw_idempotent_requests_total", result="in_progress")
                    > conflicts
                )
            )
            go_on.set()
            assert first.result(20) == second.result(20)
        assert len(twins.upstream.calls_with(marker)) == 1

    def test_anthropic(self, twins: Twins) -> None:
        marker = "sdk-anthropic-end"
        twins.upstream.on(marker, answering())
        ask: dict[str, Any] = body_of("messages", "claude", marker)
        key = {"idempotency-key": marker}
        with Anthropic(base_url=twins.one.url, api_key=TEAM_KEY) as sdk:
            first = sdk.messages.create(**ask, extra_headers=key)
            assert sdk.messages.create(**ask, extra_headers=key) == first
            texts = []
            for _ in range(2):
                key = {"idempotency-key": marker + "-stream"}
                with sdk.messages.stream(**ask, extra_headers=key) as stream:
                    texts.append(stream.get_final_message())
        assert texts[0] == texts[1]
        assert len(twins.upstream.calls_with(marker)) == 2
