"""The simulator speaks the protocol that it stands in for."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.backends.simulator import SimulatorBackend, SimulatorConfig, SimulatorResponse
from sluice.wire.answer import Answer, read_answer
from sluice.wire.stream import CompletionStream, StreamView

FAST = SimulatorConfig(ttft_seconds=0, itl_seconds=0, context_length=100)


async def ask(
    backend: SimulatorBackend, endpoint: Endpoint = Endpoint.CHAT, **body: Any
) -> SimulatorResponse:
    if endpoint is Endpoint.CHAT:
        body.setdefault("messages", [{"role": "user", "content": "one two three"}])
    data = json.dumps({"model": "sim", **body}).encode()
    return await backend.send(UpstreamRequest(endpoint, "sim", data, bool(body.get("stream")), "r"))


async def whole(endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> dict[str, Any]:
    response = await ask(SimulatorBackend(FAST), endpoint, **body)
    value: dict[str, Any] = json.loads(await response.read(10**6))
    return value


async def test_an_answer_says_what_it_is_and_counts_words() -> None:
    answer = await whole(max_tokens=4)
    assert answer["system_fingerprint"] == "sluice-simulator"
    assert answer["choices"][0]["message"]["content"] == "This answer comes from"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_is_what_the_codec_takes_for_complete(endpoint: Endpoint, n: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    more = {"prompt": "one two three"} if endpoint is Endpoint.COMPLETIONS else {}
    response = await ask(
        SimulatorBackend(FAST), endpoint, n=n, stream=True, stream_options=options, **more
    )
    stream = CompletionStream(StreamView("sim"))
    while piece := await response.next():
        stream.feed(piece)
    assert stream.done
    usage = stream.usage(0)
    assert (usage.input_tokens, usage.output_tokens) == (3, 40 * n)


async def test_a_whole_answer_is_what_the_codec_takes_for_one() -> None:
    response = await ask(SimulatorBackend(FAST), n=2)
    answer = read_answer(await response.read(10**6), "sim", 0)
    assert isinstance(answer, Answer)
    assert answer.usage.output_tokens == 80


async def test_several_prompts_have_several_choices() -> None:
    answer = await whole(Endpoint.COMPLETIONS, prompt=["a", "b"], n=2, max_tokens=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "count"), [("x", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2]], 2)]
)
async def test_embeddings_have_one_vector_an_input(value: Any, count: int) -> None:
    answer = await whole(Endpoint.EMBEDDINGS, input=value)
    assert [item["index"] for item in answer["data"]] == list(range(count))


async def test_both_encodings_hold_the_same_vector() -> None:
    plain = (await whole(Endpoint.EMBEDDINGS, input="x"))["data"][0]["embedding"]
    packed = (await whole(Endpoint.EMBEDDINGS, input="x", encoding_format="base64"))["data"][0]
    unpacked = struct.unpack(f"<{len(plain)}f", base64.b64decode(packed["embedding"]))
    assert unpacked == pytest.approx(plain, abs=1e-6)


async def test_too_long_a_request_is_refused_in_vllms_words() -> None:
    response = await ask(SimulatorBackend(FAST), max_tokens=98)
    assert response.status == 400
    error = json.loads(await response.read(10**6))["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 100 tokens" in error["message"]


async def test_an_abandoned_generation_counts_as_aborted() -> None:
    backend = SimulatorBackend(SimulatorConfig(ttft_seconds=60))
    asking = asyncio.create_task(ask(backend))
    await asyncio.sleep(0)
    assert backend.counters.running == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert backend.counters.running == 0
    assert backend.counters.finished["abort"] == 1


async def test_a_finished_one_counts_by_its_reason() -> None:
    backend = SimulatorBackend(FAST)
    await ask(backend)
    await ask(backend, max_tokens=2)
    assert backend.counters.finished == {"stop": 1, "length": 1, "abort": 0, "error": 0}
    assert backend.counters.generation_tokens == 42
