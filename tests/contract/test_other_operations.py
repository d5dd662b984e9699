"""E, L, M: embeddings, legacy completions and models."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.harness.upstream import USAGE, Call, Upstream

KINDS = ["vllm", "compatible"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def vectors(call: Call) -> None:
    """The vector of the input at place n is [n, 0.5]."""
    given = call.json["input"]
    count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    found: list[Any] = [[float(place), 0.5] for place in range(count)]
    if call.json.get("encoding_format") == "base64":
        found = [base64.b64encode(struct.pack("<2f", *vector)).decode() for vector in found]
    data = [
        {"object": "embedding", "index": place, "embedding": vector}
        for place, vector in enumerate(found)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    call.respond(200, {"object": "list", "data": data, "model": "m", "usage": usage})


@every_kind
def test_e01_the_sdks_default_decodes(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("e01-end", vectors)
    answer = sdk.embeddings.create(model=kind, input="e01-end")
    assert answer.data[0].embedding == [0.0, 0.5]
    assert answer.model == kind
    assert answer.usage.prompt_tokens == 3


@every_kind
def test_e02_floats_are_a_list(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("e02-end", vectors)
    raw = sdk.embeddings.with_raw_response.create(
        model=kind, input="e02-end", encoding_format="float"
    )
    assert raw.http_response.json()["data"][0]["embedding"] == [0.0, 0.5]


@every_kind
@pytest.mark.parametrize(("tokens", "count"), [([5, 301], 1), ([[5, 302], [7]], 2)])
def test_e03_tokens_are_taken(
    sdk: OpenAI, scripted: Upstream, kind: str, tokens: Any, count: int
) -> None:
    scripted.on("[5,301]", vectors)
    scripted.on("[5,302]", vectors)
    answer = sdk.embeddings.create(model=kind, input=tokens)
    assert len(answer.data) == count


@every_kind
def test_e04_a_batch_keeps_its_order(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("e04-end", vectors)
    answer = sdk.embeddings.create(model=kind, input=["e04-end", "b", "c"])
    assert [(item.index, item.embedding[0]) for item in answer.data] == [(0, 0), (1, 1), (2, 2)]


@every_kind
def test_e05_dimensions_that_the_model_has_not_are_a_400(
    sdk: OpenAI, scripted: Upstream, kind: str
) -> None:
    marker = f"e05-{kind}-end"
    text = "Model does not support matryoshka representation, changing output dimensions"
    error = {"message": text, "type": "BadRequestError", "param": "dimensions", "code": 400}
    scripted.on(marker, lambda call: call.respond(400, {"error": error}))
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.embeddings.create(model=kind, input=marker, dimensions=3)
    assert raised.value.param == "dimensions"
    assert scripted.call_with(marker).json["dimensions"] == 3


@every_kind
@pytest.mark.parametrize("given", ["", ["a", ""], []])
def test_e06_empty_inputs_are_a_400(sdk: OpenAI, kind: str, given: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.embeddings.create(model=kind, input=given)
    assert (raised.value.param or "").startswith("input")


@every_kind
def test_e07_too_many_inputs_are_a_400(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("e07-fits", vectors)
    fits = sdk.embeddings.create(model=kind, input=["e07-fits"] * 2048)
    assert len(fits.data) == 2048
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.embeddings.create(model=kind, input=["e07"] * 2049)
    assert raised.value.param == "input"


def test_anthropic_upstreams_have_no_embeddings(sdk: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        sdk.embeddings.create(model="claude", input="x")


def legacy(call: Call) -> None:
    """One choice for each prompt, each with its number."""
    prompts = call.json["prompt"]
    places = range(len(prompts) if isinstance(prompts, list) else 1)
    shape = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "backend-model"}

    def choice(place: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": place, "text": text, "logprobs": None, "finish_reason": finish}

    if not call.json.get("stream"):
        choices = [choice(place, f"<{place}>", "stop") for place in places]
        call.respond(200, {**shape, "choices": choices, "usage": USAGE})
        return
    call.start_stream()
    for place in places:
        call.event({**shape, "choices": [choice(place, f"<{place}>", None)]})
        call.event({**shape, "choices": [choice(place, "", "stop")]})
    call.event({**shape, "choices": [], "usage": USAGE})
    call.event("[DONE]")
    call.end()


@every_kind
def test_l01_two_prompts_have_two_choices(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("l01-end", legacy)
    answer = sdk.completions.create(model=kind, prompt=["l01-end", "b"], max_tokens=5)
    assert answer.object == "text_completion"
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "<0>"), (1, "<1>")]
    assert answer.model == kind


@every_kind
def test_l02_they_stream(sdk: OpenAI, scripted: Upstream, kind: str) -> None:
    scripted.on("l02-end", legacy)
    raw = sdk.completions.with_raw_response.create(
        model=kind, prompt=["l02-end", "b"], max_tokens=5, stream=True
    )
    parts = list(raw.parse())
    assert {part.object for part in parts} == {"text_completion"}
    assert "".join(choice.text for part in parts for choice in part.choices) == "<0><1>"
    assert all(part.choices for part in parts)
    with sdk.completions.with_streaming_response.create(
        model=kind, prompt="l02-end", max_tokens=5, stream=True
    ) as response:
        assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"


def test_m01_models_are_listed_and_found_whatever_their_name(sdk: OpenAI) -> None:
    listed = {model.id: model for model in sdk.models.list()}
    assert {"vllm", "compatible", "claude", "vendor/model"} <= set(listed)
    found = sdk.models.retrieve("vendor/model")
    assert found == listed["vendor/model"]
    assert (found.object, bool(found.owned_by)) == ("model", True)


def test_m02_anthropics_sdk_reads_them_too(claude: Anthropic) -> None:
    page = claude.models.list()
    assert {"claude", "vendor/model"} <= {model.id for model in page}
    assert page.has_more is False
    found = claude.models.retrieve("claude")
    assert (found.id, found.type, found.display_name) == ("claude", "model", "claude")
    assert found.created_at.tzinfo is not None
