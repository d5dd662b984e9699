"""Sampling parameters of a deployment, for requests that give none."""

from __future__ import annotations

import json
from typing import Any

from sluice.backends.base import Endpoint
from sluice.backends.vllm import VLLM_DIALECT
from sluice.router.catalog import Deployment, Model
from sluice.router.translation import Call, translate
from sluice.wire.request import read_request

DEPLOYMENT = Deployment("pool", "m", defaults=(("temperature", 0.2), ("top_k", 20)))
MODEL = Model(
    "m", 100, frozenset({"chat", "embeddings"}), frozenset({"interactive"}), (DEPLOYMENT,)
)


def sent(endpoint: Endpoint = Endpoint.CHAT, **members: Any) -> Any:
    prompt = "input" if endpoint is Endpoint.EMBEDDINGS else "messages"
    body = {"model": "m", prompt: [{"role": "user", "content": "hi"}], **members}
    request = read_request(json.dumps(body).encode(), prompt)
    translated = translate(Call(endpoint, request, "id"), MODEL, DEPLOYMENT, VLLM_DIALECT)
    return json.loads(translated.body)


def test_they_fill_what_the_request_leaves_open() -> None:
    body = sent(temperature=0.9)
    assert (body["temperature"], body["top_k"]) == (0.9, 20)


def test_null_leaves_it_open() -> None:
    assert sent(temperature=None)["temperature"] == 0.2


def test_zero_is_said() -> None:
    assert sent(temperature=0)["temperature"] == 0


def test_embeddings_have_none() -> None:
    assert "temperature" not in sent(Endpoint.EMBEDDINGS)
