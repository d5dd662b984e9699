"""What requests are admitted with."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.gateway.quotas.needs import Need, Needs, TokenEstimates, measure
from sluice.router.catalog import Deployment, Model
from sluice.wire.request import read_request
from sluice.wire.usage import Usage

CHEAP, DEAR = Price.of_usd(Decimal(1), Decimal(2)), Price.of_usd(Decimal(10), Decimal(20))


def model(name: str, context_length: int = 100_000) -> Model:
    return Model(
        name,
        context_length,
        frozenset({"chat"}),
        frozenset({"interactive"}),
        (Deployment("provider", name),),
    )


def need(
    body: dict[str, Any],
    *models: Model,
    endpoint: Endpoint = Endpoint.CHAT,
    stored: bytes = b"",
) -> Need:
    text = json.dumps({"model": "cheap", **body}).encode()
    prompt = "messages" if endpoint is Endpoint.CHAT else "prompt"
    needs = Needs({"cheap": CHEAP, "dear": DEAR}, TokenEstimates())
    request = read_request(text, prompt)
    return needs.of(endpoint, request, text, models or (model("cheap"),), stored)


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100, **more}


def test_the_dearest_model_that_may_be_reached_sets_the_price() -> None:
    alone, chained = need(chat()), need(chat(), model("cheap"), model("dear"))
    assert chained.nano_usd == 10 * alone.nano_usd
    assert chained.tokens == alone.tokens


@pytest.mark.parametrize(
    ("more", "endpoint", "answers"),
    [
        ({}, Endpoint.CHAT, 1),
        ({"n": 3}, Endpoint.CHAT, 3),
        ({"n": 2, "prompt": ["a", "b", "c"]}, Endpoint.COMPLETIONS, 6),
        ({"n": 1, "best_of": 5, "prompt": "a"}, Endpoint.COMPLETIONS, 5),
    ],
)
def test_every_answer_may_be_as_long_as_allowed(
    more: dict[str, Any], endpoint: Endpoint, answers: int
) -> None:
    one = need(chat(**more), endpoint=endpoint)
    longer = need(chat(**more, **{}) | {"max_tokens": 200}, endpoint=endpoint)
    assert longer.tokens - one.tokens == 100 * answers


@given(st.text(max_size=3000), st.integers(1, 1000))
def test_no_prompt_costs_more_than_was_reserved(text: str, max_tokens: int) -> None:
    """No tokenizer makes more tokens of a text than it has bytes."""
    worst = Usage(len(text.encode("utf-8", "surrogatepass")) + 500, output_tokens=max_tokens)
    assert need(chat(text, max_tokens=max_tokens)).nano_usd >= CHEAP.cost(worst)


def test_a_picture_by_address_is_reserved_for() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    body = {"messages": [{"role": "user", "content": [picture]}], "max_tokens": 1}
    assert need(body).nano_usd >= CHEAP.cost(Usage(16_000))


def test_the_bytes_of_a_picture_are_no_text() -> None:
    url = "data:image/png;base64," + "A" * 400_000
    picture = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [picture]}], "max_tokens": 1}
    assert need(body).tokens < 3_000
    assert measure(json.dumps(body).encode()).pictures == 1


def test_what_is_stored_counts_like_what_is_sent() -> None:
    plain = need(chat())
    stored = json.dumps([{"role": "user", "content": "word " * 4_000}]).encode()
    more = need(chat(), stored=stored)
    assert more.text - plain.text == len(stored)
    assert more.tokens - plain.tokens >= len(stored) // 4
    assert more.nano_usd - plain.nano_usd == len(stored) * 1_000


@pytest.mark.parametrize("url", ["https://example.com/a.png", f"data:image/png;{'A' * 400_000}"])
def test_a_stored_picture_counts_as_one_that_is_sent(url: str) -> None:
    picture = {"type": "input_image", "image_url": url}
    stored = json.dumps([{"role": "user", "content": [picture]}]).encode()
    found = need(chat(), stored=stored)
    assert found.tokens < 3_000
    assert found.text == 0
    assert found.nano_usd >= CHEAP.cost(Usage(16_000))


def test_estimates_follow_what_models_report() -> None:
    estimates = TokenEstimates()
    for _ in range(200):
        estimates.learn("dense", 1000, 900)
        estimates.learn("sparse", 1000, 100)
    assert 900 <= estimates.estimate("dense", 1000) < 1000
    assert 100 <= estimates.estimate("sparse", 1000) < 130
    assert estimates.estimate("unknown", 1000) > 250


@given(st.lists(st.floats(0.1, 0.9), min_size=50, max_size=200))
def test_most_prompts_are_not_underestimated(ratios: list[float]) -> None:
    estimates = TokenEstimates()
    for ratio in ratios * 3:
        estimates.learn("model", 10_000, int(10_000 * ratio))
    short = sum(estimates.estimate("model", 10_000) < int(10_000 * ratio) for ratio in ratios)
    assert short <= len(ratios) * 0.5
