"""The official SDK, unmodified, over every kind of backend: chat, streams, embeddings, models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from openai import OpenAI

from tests.engines.katan import KatanEngine
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import RESTING, StartGateway
from tests.harness.fixtures import model as model_settings
from tests.harness.gateway import TEAM_KEY, Gateway
from tests.harness.upstream import Call, Upstream


class Backend(NamedTuple):
    """A model behind the gateway, and what its engine offers."""

    model: str
    embedding_model: str | None
    completions: bool


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("vllm", marks=pytest.mark.vllm),
        pytest.param("katan", marks=pytest.mark.katan),
        "simulator",
    ],
)
def served(
    request: pytest.FixtureRequest,
    start_gateway: StartGateway,
) -> tuple[Gateway, Backend]:
    """A gateway before the real vLLM, llm-katan, or the simulator."""
    if request.param == "vllm":
        chat: VllmEngine = request.getfixturevalue("vllm_engine")
        embed: VllmEngine = request.getfixturevalue("vllm_embed_engine")
        config = {
            "providers": {
                "gpu": {"kind": "vllm", "replicas": [chat.url]},
                "gpu-embed": {"kind": "vllm", "replicas": [embed.url]},
            },
            "models": [
                model_settings(
                    "llama", {"provider": "gpu", "model": chat.model}, context_length=2048
                ),
                model_settings("embed", {"provider": "gpu-embed", "model": embed.model}),
            ],
        }
        return start_gateway("sdk-vllm", config), Backend("llama", "embed", True)
    if request.param == "katan":
        katan: KatanEngine = request.getfixturevalue("katan")
        provider = {"kind": "openai", "api_key": "any", "base_url": katan.base_url}
        config = {
            "providers": {"katan": provider},
            "models": [model_settings("echo", {"provider": "katan", "model": katan.model})],
        }
        return start_gateway("sdk-katan", config), Backend("echo", None, False)
    config = {
        "providers": {"sim": {"kind": "simulator"}},
        "models": [model_settings("sim", {"provider": "sim", "model": "sim"})],
    }
    return start_gateway("sdk-sim", config), Backend("sim", "sim", True)


@pytest.fixture
def sdk(served: tuple[Gateway, Backend]) -> Iterator[OpenAI]:
    gateway, _ = served
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=TEAM_KEY, max_retries=0) as client:
        yield client


MESSAGES: Any = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Tell me of the sea, 你好."},
]


def test_chat_tokens_are_those_of_the_record(sdk: OpenAI, served: tuple[Gateway, Backend]) -> None:
    gateway, backend = served
    answer = sdk.chat.completions.with_raw_response.create(
        model=backend.model, messages=MESSAGES, max_tokens=16
    )
    parsed = answer.parse()
    assert parsed.choices[0].message.content
    assert parsed.model == backend.model
    assert parsed.usage is not None
    record = gateway.record(answer.headers["x-request-id"])
    assert parsed.usage.prompt_tokens == record["input_tokens"]
    assert parsed.usage.completion_tokens == record["output_tokens"]
    assert record["status"] == "ok"
    assert record["cost_nano_usd"] == _cost(record)


def _cost(record: dict[str, Any]) -> int:
    """By the prices of `model()`: 3, 0.3 and 15 USD per million tokens."""
    cached = record["cached_input_tokens"]
    return int(
        3000 * (record["input_tokens"] - cached) + 300 * cached + 15000 * record["output_tokens"]
    )


@pytest.mark.parametrize("asked", [True, False])
def test_streamed_tokens_are_those_of_the_record(
    sdk: OpenAI, served: tuple[Gateway, Backend], asked: bool
) -> None:
    gateway, backend = served
    more: Any = {"stream_options": {"include_usage": True}} if asked else {}
    with sdk.chat.completions.with_streaming_response.create(
        model=backend.model, messages=MESSAGES, max_tokens=16, stream=True, **more
    ) as response:
        request_id = response.headers["x-request-id"]
        chunks: list[Any] = list(response.parse())
    assert {chunk.model for chunk in chunks} == {backend.model}
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [reason for reason in reasons if reason]
    record = gateway.record(request_id)
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(usages) == (1 if asked else 0)
    if asked:
        assert chunks[-1].choices == []
        assert usages[0].prompt_tokens == record["input_tokens"]
        assert usages[0].completion_tokens == record["output_tokens"]
    assert record["ttft_ms"] > 0
    assert record["estimated"] is False


def test_the_stream_helper_accumulates(sdk: OpenAI, served: tuple[Gateway, Backend]) -> None:
    _, backend = served
    with sdk.chat.completions.stream(
        model=backend.model, messages=MESSAGES, max_tokens=8
    ) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot  # the final one must have ended by itself
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content


@pytest.mark.parametrize("given", [["one", "two words"], "one", [15, 16, 17], [[15], [16, 17]]])
def test_embeddings_decode_in_both_encodings(
    sdk: OpenAI, served: tuple[Gateway, Backend], given: Any
) -> None:
    gateway, backend = served
    if backend.embedding_model is None:
        pytest.skip("llm-katan has no embeddings")
    default = sdk.embeddings.with_raw_response.create(model=backend.embedding_model, input=given)
    floats = sdk.embeddings.create(
        model=backend.embedding_model, input=given, encoding_format="float"
    )
    parsed = default.parse()
    assert [item.index for item in parsed.data] == list(range(len(floats.data)))
    for decoded, plain in zip(parsed.data, floats.data, strict=True):
        assert decoded.embedding == pytest.approx(plain.embedding, abs=1e-2)
    record = gateway.record(default.headers["x-request-id"])
    assert record["input_tokens"] == parsed.usage.prompt_tokens
    assert record["output_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_legacy_completions_give_a_choice_for_each_prompt(
    sdk: OpenAI, served: tuple[Gateway, Backend], stream: bool
) -> None:
    _, backend = served
    if not backend.completions:
        pytest.skip("llm-katan has no completions")
    prompts = ["the sea", "the sky"]
    answer: Any = sdk.completions.create(
        model=backend.model, prompt=prompts, max_tokens=6, stream=stream
    )
    chunks = list(answer) if stream else [answer]
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}
    assert all(chunk.object == "text_completion" for chunk in chunks)


def test_models_are_listed_and_retrieved(sdk: OpenAI, served: tuple[Gateway, Backend]) -> None:
    _, backend = served
    assert backend.model in [found.id for found in sdk.models.list()]
    assert sdk.models.retrieve(backend.model).id == backend.model
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("org/unknown")
    with pytest.raises(openai.APIStatusError) as refused:
        sdk.models.delete(backend.model)
    assert refused.value.status_code == 405


def test_the_day_sums_up_the_records(sdk: OpenAI, served: tuple[Gateway, Backend]) -> None:
    gateway, backend = served
    answer = sdk.chat.completions.with_raw_response.create(
        model=backend.model, messages=MESSAGES, max_tokens=4
    )
    gateway.record(answer.headers["x-request-id"])
    rows = gateway.api("GET", "/v1/usage/records?limit=1000")["data"]
    day = gateway.api("GET", f"/v1/usage?date={rows[0]['time'][:10]}")
    for name in ("input_tokens", "output_tokens", "cached_input_tokens", "cost_nano_usd"):
        assert day[name] == sum(row[name] for row in rows)
    assert day["requests"] == len(rows)
    assert day["cost_usd"] == pytest.approx(day["cost_nano_usd"] / 1e9)


STATUSES = [
    (400, openai.BadRequestError, 400),
    (401, openai.InternalServerError, 502),
    (403, openai.InternalServerError, 502),
    (404, openai.NotFoundError, 404),
    (409, openai.ConflictError, 409),
    (422, openai.UnprocessableEntityError, 422),
    (429, openai.RateLimitError, 429),
    (500, openai.InternalServerError, 502),
    (503, openai.InternalServerError, 503),
    (529, openai.InternalServerError, 503),
]


@pytest.mark.parametrize(("given", "error", "status"), STATUSES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_raises_the_right_class_for_each_upstream_status(
    client: OpenAI,
    upstream: Upstream,
    given: int,
    error: type[openai.APIStatusError],
    status: int,
    stream: bool,
) -> None:
    marker = f"status-{given}-{stream}-end"
    body = {"error": {"message": "told you", "type": "t", "param": None, "code": given}}
    model = f"resting-{given}-{'stream' if stream else 'whole'}"
    headers = {"retry-after": "7"} if given in (429, 503, 529) else {}
    upstream.on(marker, lambda call: call.respond(given, body, headers))
    with pytest.raises(error) as raised:
        client.chat.completions.create(
            model=model if model in RESTING else "openai-alias",
            messages=[{"role": "user", "content": marker}],
            max_tokens=5,
            stream=stream,
        )
    assert raised.value.status_code == status
    assert raised.value.request_id
    if status in (429, 503):
        assert raised.value.response.headers["retry-after"] == "7"
    if given in (401, 403):
        assert raised.value.response.headers["x-should-retry"] == "false"


def test_the_sdk_raises_for_our_own_refusals(gateway: Gateway, client: OpenAI) -> None:
    stranger = OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-stranger", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(
            model="none", messages=[{"role": "user", "content": "x"}], max_tokens=1
        )
    assert missing.value.param == "model"
    assert missing.value.code == "model_not_found"


def test_an_upstream_that_answers_a_stream_with_json_is_an_error(
    http: httpx.Client, upstream: Upstream
) -> None:
    def script(call: Call) -> None:
        call.respond(200, {"choices": []})

    upstream.on("json-for-stream", script)
    request = {"model": "openai-alias", "max_tokens": 3, "stream": True}
    request["messages"] = [{"role": "user", "content": "json-for-stream"}]
    assert http.post("/v1/chat/completions", json=request).status_code == 502
