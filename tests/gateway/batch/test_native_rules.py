"""Which batches go natively, by values alone; and what providers' result lines say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.gateway.batch.native.results import (
    Outcome,
    lines_of,
    read_anthropic_line,
    read_openai_line,
)
from sluice.gateway.batch.native.rules import NativePolicy, NativeRules, must_return
from sluice.gateway.settings import Config
from sluice.router.catalog import Catalog, Deployment, Model, Trial
from sluice.wire.usage import Usage
from tests.gateway.batch.native_site import model

NOW = datetime(2026, 11, 1, tzinfo=UTC)
POLICY = NativePolicy(min_items=10, live_time=timedelta(hours=4))
CHAT = Endpoint.CHAT


def decide(
    known: Model, total: int = 10, hours: float = 24, endpoint: Endpoint = CHAT
) -> str | None:
    """The deployment that a batch goes to."""
    rules = NativeRules(Catalog([known], 0), {"openai": POLICY})
    target = rules.decide(known.name, endpoint, total, NOW + timedelta(hours=hours), NOW)
    assert target is None or rules.goes_natively(known.name)
    return None if target is None else target.deployment.name


def test_what_goes() -> None:
    gpt = model("gpt", "openai")
    resting = replace(gpt, deployments=(*gpt.deployments, Deployment("other", "m", weight=0)))
    assert decide(gpt) == decide(resting) == "openai/upstream-gpt"
    assert decide(gpt, hours=8) is not None


def test_what_does_not() -> None:
    gpt = model("gpt", "openai")
    trial = Trial(gpt, 10.0)
    assert decide(gpt, total=9) is None
    assert decide(gpt, hours=7.9) is None
    assert decide(gpt, endpoint=Endpoint.RESPONSES) is None
    assert decide(gpt, endpoint=Endpoint.EMBEDDINGS) is None
    assert decide(model("other", "elsewhere")) is None
    assert decide(replace(gpt, deployments=(*gpt.deployments, Deployment("other", "m")))) is None
    assert decide(replace(gpt, canary=trial)) is None
    assert decide(replace(gpt, shadow=trial)) is None
    assert decide(replace(gpt, tiers=frozenset({"interactive"}))) is None


def test_a_policy_that_is_off_takes_nothing_new() -> None:
    rules = NativeRules(Catalog([model("gpt", "openai")], 0), {"openai": NativePolicy(False)})
    assert rules.models() == []
    assert not rules.goes_natively("gpt")
    assert not rules.goes_natively("unknown")


def test_when_items_are_taken_back() -> None:
    assert not must_return(POLICY, "in_progress", NOW + timedelta(hours=4, seconds=1), NOW)
    assert must_return(POLICY, "in_progress", NOW + timedelta(hours=4), NOW)
    assert must_return(POLICY, "cancelling", NOW + timedelta(hours=20), NOW)


def test_the_price_is_a_share_and_never_above_that_of_live_items() -> None:
    usage = Usage(input_tokens=1001, output_tokens=1)
    price = Price.of_usd(Decimal(3), Decimal(15))
    assert POLICY.price(price).cost(usage, batch=True) == (1001 * 3000 + 15_000) // 2
    cheap = replace(price, batch_share=Fraction(1, 4))
    assert POLICY.price(cheap) == cheap


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (
            {"custom_id": "a", "response": {"status_code": 200, "body": {"x": 1}}, "error": None},
            Outcome("a", 200, b'{"x": 1}'),
        ),
        (
            {"custom_id": "a", "response": None, "error": {"code": "batch_expired"}},
            Outcome("a", None, reason="batch_expired"),
        ),
        ({"custom_id": "a"}, Outcome("a", None, reason="not run")),
        ({"custom_id": 5, "response": None}, None),
        ({"response": {"status_code": 200, "body": {}}}, None),
        ({"custom_id": "a", "response": {"status_code": "x"}}, None),
    ],
)
def test_lines_of_openai(line: dict[str, Any], outcome: Outcome | None) -> None:
    assert read_openai_line(json.dumps(line).encode()) == outcome


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"type": "succeeded", "message": {"x": 1}}, Outcome("a", 200, b'{"x": 1}')),
        ({"type": "canceled"}, Outcome("a", None, reason="canceled")),
        ({"type": "expired"}, Outcome("a", None, reason="expired")),
        ({"type": "something-new"}, None),
    ],
)
def test_lines_of_anthropic(result: dict[str, Any], outcome: Outcome | None) -> None:
    assert read_anthropic_line(json.dumps({"custom_id": "a", "result": result}).encode()) == outcome


@pytest.mark.parametrize(
    ("kind", "status"),
    [("invalid_request_error", 400), ("overloaded_error", 529), ("something-new", 500)],
)
def test_errors_of_anthropic(kind: str, status: int) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "no"}}
    line = {"custom_id": "a", "result": {"type": "errored", "error": error}}
    outcome = read_anthropic_line(json.dumps(line).encode())
    assert outcome is not None
    assert outcome.status == status


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"null", b'{"custom_id":"a' * 3])
def test_what_is_no_line(text: bytes) -> None:
    assert read_openai_line(text) is None
    assert read_anthropic_line(text) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_lines_come_whole_however_they_are_cut(size: int) -> None:
    text = b"one\r\n\n  \ntwo\nthree\xff\nfour"

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    assert [line async for line in lines_of(chunks())] == [b"one", b"two", b"three\xff", b"four"]


def configured(**provider: Any) -> Config:
    given = {"kind": "openai", "api_key": "sk-1", **provider}
    deployment = {"provider": "p", "model": "m"}
    named = {"name": "m", "context_length": 10, "capabilities": ["chat"]}
    models = [{**named, "deployments": [deployment]}]
    return Config.model_validate({"providers": {"p": given}, "models": models})


def test_the_configuration() -> None:
    provider = configured(native_batch={"price_share": "0.4", "live_hours": 6}).providers["p"]
    assert provider.kind == "openai"
    assert provider.native_batch is not None
    policy = provider.native_batch.policy()
    assert (policy.price_share, policy.live_time) == (Fraction(2, 5), timedelta(hours=6))
    assert configured().providers["p"].native_batch is None  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match="needs the provider's key"):
        configured(api_key=None, native_batch={})
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        configured(native_batch={"price_share": 1.5})
