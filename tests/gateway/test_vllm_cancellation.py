"""Clients that leave, against the real engine: it stops, and what it generated is charged."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.engines.vllm_engine import VllmEngine
from tests.gateway.test_cases_cancellation import Abandoned, open_request
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually

pytestmark = pytest.mark.vllm

LONG = 1500


@pytest.fixture(scope="module")
def pool_gateway(vllm_engine: VllmEngine, start_gateway: StartGateway) -> Gateway:
    config = {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm_engine.url]}},
        "models": [
            model("llama", {"provider": "gpu", "model": vllm_engine.model}, context_length=2048)
        ],
    }
    return start_gateway("pool", config)


def request(operation: str, stream: bool) -> dict[str, Any]:
    prompt: Any = "Count the waves"
    if operation == "chat":
        prompt = [{"role": "user", "content": prompt}]
    member = "messages" if operation == "chat" else "prompt"
    return {"model": "llama", member: prompt, "max_tokens": LONG, "stream": stream}


@pytest.mark.parametrize("operation", ["chat", "completions"])
@pytest.mark.parametrize("moment", ["mid-stream", "nothing-read", "whole"])
def test_the_engine_stops_within_a_second_and_the_row_says_cancelled(
    pool_gateway: Gateway, vllm_engine: VllmEngine, operation: str, moment: str
) -> None:
    eventually(lambda: vllm_engine.running() == 0)
    generated_before = vllm_engine.generated_tokens()
    abandoned = Abandoned(pool_gateway, "llama")
    with open_request(pool_gateway, operation, request(operation, moment != "whole")) as client:
        # one that leaves before its request went on is not charged, and has no record
        eventually(lambda: pool_gateway.metric("gw_in_flight", model="llama") == 1, interval=0.005)
        if moment == "whole":
            eventually(lambda: vllm_engine.running() == 1, interval=0.005)
        if moment == "mid-stream":
            seen = b""
            while seen.count(b"data: ") < 5:
                seen += client.recv(65536)
    left = time.monotonic()
    record = abandoned.record()
    eventually(lambda: vllm_engine.running() == 0, 5, interval=0.01)
    assert time.monotonic() - left < 1.5
    stopped_at = vllm_engine.generated_tokens()
    assert stopped_at - generated_before < LONG
    assert vllm_engine.generated_tokens() == stopped_at
    assert record["status"] == "cancelled"
    assert record["error_code"] == "client_closed_request"
    assert record["input_tokens"] > 0
    if moment == "mid-stream":
        assert record["estimated"] is False
        assert 3 <= record["output_tokens"] <= stopped_at - generated_before


def test_the_gateway_stays_healthy_after_many_abandoned_streams(
    pool_gateway: Gateway, vllm_engine: VllmEngine
) -> None:
    for _ in range(10):
        with open_request(pool_gateway, "chat", request("chat", True)) as client:
            client.recv(10)
    eventually(lambda: vllm_engine.running() == 0 and vllm_engine.waiting() == 0)
    answer = pool_gateway.api(
        "POST", "/v1/chat/completions", {**request("chat", False), "max_tokens": 3}
    )
    assert answer["usage"]["completion_tokens"] == 3
