"""The simulator whose answers share an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.backends.engine import EngineConfig, Pace, Policy
from sluice.backends.simulator import SimulatorBackend, SimulatorConfig, SimulatorResponse
from sluice.backends.simulator_app import SimulatorApp
from sluice.backends.simulator_words import block_hashes, count_words, words_of
from tests.harness.polling import eventually_async

QUICK = Pace(floor_seconds=0.001, prefill_token_seconds=0.0)
#: Slow enough that whoever runs, runs until the test is over.
SLOW = Pace(floor_seconds=60)


def simulator(pace: Pace = QUICK, **sizes: Any) -> SimulatorBackend:
    engine = EngineConfig(pace=pace, **{"block_size": 4, **sizes})
    return SimulatorBackend(SimulatorConfig(engine=engine, context_length=400))


async def ask(
    backend: SimulatorBackend, words: int = 10, stream: bool = False, **body: Any
) -> SimulatorResponse:
    content = " ".join(f"w{number}" for number in range(words))
    body = {"messages": [{"role": "user", "content": content}], "stream": stream, **body}
    data = json.dumps({"model": "sim", **body}).encode()
    return await backend.send(UpstreamRequest(Endpoint.CHAT, "sim", data, stream, "r"))


async def answer(backend: SimulatorBackend, words: int = 10, **body: Any) -> dict[str, Any]:
    response = await ask(backend, words, **body)
    value: dict[str, Any] = json.loads(await response.read(10**6))
    return value


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def test_a_prefix_that_came_before_is_cached() -> None:
    backend = simulator()
    assert cached(await answer(backend, max_tokens=3)) == 0
    assert cached(await answer(backend, max_tokens=3)) == 8
    assert cached(await answer(backend, words=40, max_tokens=3)) == 8


async def test_the_next_turn_finds_the_answer_before_it() -> None:
    backend = simulator()
    first = await answer(backend, words=10, max_tokens=11)
    turns = [
        {"role": "user", "content": " ".join(f"w{number}" for number in range(10))},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and then"},
    ]
    assert cached(await answer(backend, messages=turns, max_tokens=1)) == 20


async def test_a_salt_keeps_caches_apart() -> None:
    backend = simulator()
    await answer(backend, max_tokens=1, cache_salt="one")
    assert cached(await answer(backend, max_tokens=1, cache_salt="other")) == 0
    assert cached(await answer(backend, max_tokens=1, cache_salt="one")) == 8


@pytest.mark.parametrize("salt", ["", "a/b", "a@b", "x" * 129, 7])
async def test_a_salt_that_vllm_refuses_is_refused(salt: object) -> None:
    response = await ask(simulator(), cache_salt=salt)
    assert response.status == 400
    assert json.loads(await response.read(10**6))["error"]["param"] == "cache_salt"


async def test_without_prefix_caching_nothing_is_cached() -> None:
    backend = simulator(prefix_caching=False)
    await answer(backend, max_tokens=1)
    assert cached(await answer(backend, max_tokens=1)) == 0


async def test_copies_and_prompts_are_counted_once() -> None:
    backend = simulator()
    whole = await answer(backend, n=3, max_tokens=2)
    assert len(whole["choices"]) == 3
    assert whole["usage"]["completion_tokens"] == 6
    assert backend.readings().counters.request_success["length"] == 3


async def test_a_full_queue_answers_503_in_vllms_words() -> None:
    backend = simulator(SLOW, max_num_queued_reqs=1)
    running = await ask(backend, stream=True)
    refused = await ask(backend)
    assert refused.status == 503
    error = json.loads(await refused.read(10**6))["error"]
    assert error["message"].startswith("The engine is currently busy")
    assert (error["type"], error["code"]) == ("Service Unavailable", "503")
    running.close()
    assert (await ask(backend, stream=True)).status == 200


async def test_several_answers_are_refused_as_one() -> None:
    backend = simulator(SLOW, max_num_queued_reqs=2)
    assert (await ask(backend, n=3)).status == 503
    assert (await ask(backend, n=2, stream=True)).status == 200


async def test_prompt_tokens_in_the_queue_answer_503() -> None:
    backend = simulator(SLOW, max_num_queued_tokens=10)
    await ask(backend, stream=True)
    refused = await ask(backend)
    assert refused.status == 503
    assert "prefill token backlog" in json.loads(await refused.read(10**6))["error"]["message"]


async def test_a_priority_needs_its_policy() -> None:
    response = await ask(simulator(), priority=1)
    assert response.status == 400
    assert json.loads(await response.read(10**6))["error"]["param"] == "priority"


async def test_priority_decides_who_is_next() -> None:
    backend = simulator(max_num_seqs=1, policy=Policy.PRIORITY)
    done: list[str] = []

    async def one(name: str, **body: Any) -> None:
        await answer(backend, max_tokens=5, **body)
        done.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(one("running"))
        await asyncio.sleep(0)
        group.create_task(one("late", priority=5))
        group.create_task(one("urgent", priority=-5))
    assert done.index("urgent") < done.index("late") == 2


async def running(backend: SimulatorBackend) -> int:
    return backend.readings().running


async def test_a_dropped_stream_leaves_the_engine() -> None:
    backend = simulator(SLOW)
    response = await ask(backend, stream=True)
    await response.next()
    await eventually_async(lambda: running(backend))
    response.close()
    response.close()
    assert backend.readings().counters.request_success["abort"] == 1


async def test_an_answer_that_ignores_its_end_is_as_long_as_asked() -> None:
    whole = await answer(simulator(), max_tokens=100, ignore_eos=True)
    assert whole["usage"]["completion_tokens"] == 100
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_what_the_cache_cannot_hold_is_too_long() -> None:
    response = await ask(simulator(num_blocks=4), words=10, max_tokens=7)
    assert response.status == 400
    error = json.loads(await response.read(10**6))["error"]
    assert error["code"] == "context_length_exceeded"


async def test_few_blocks_preempt_but_all_answers_are_whole() -> None:
    backend = simulator(num_blocks=16)
    answers = await asyncio.gather(*(answer(backend, max_tokens=40) for _ in range(4)))
    assert [each["usage"]["completion_tokens"] for each in answers] == [40] * 4
    assert backend.readings().counters.num_preemptions > 0


async def test_a_lag_is_no_work() -> None:
    """What a request spends outside the engine delays its tokens, not those of others."""
    pace = Pace(floor_seconds=0.001, prefill_token_seconds=0.0, request_seconds=0.2)
    backend = simulator(pace, max_num_seqs=1)
    clock = asyncio.get_running_loop().time
    start = clock()
    await asyncio.gather(*(answer(backend, max_tokens=2) for _ in range(10)))
    assert 0.2 <= clock() - start < 2 * 0.2 + 0.5


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, SimulatorBackend]]:
    """The simulator over HTTP, slow enough to be left."""
    backend = simulator(Pace(floor_seconds=0.02), num_blocks=1000)
    app = SimulatorApp(backend, "sim")

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _bridge(app, request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(application) as running:
        yield str(running.make_url("")), backend


async def _bridge(app: SimulatorApp, request: web.Request) -> web.StreamResponse:
    """ASGI in aiohttp's server, as far as the simulator needs it."""
    messages = [{"type": "http.request", "body": await request.read(), "more_body": False}]
    response = web.StreamResponse()

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            response.set_status(message["status"])
            response.content_type = "text/plain"
            await response.prepare(request)
        else:
            await response.write(message["body"])

    await app({"path": request.path, "method": request.method}, receive, send)
    return response


async def test_metrics_have_vllms_names(server: tuple[str, SimulatorBackend]) -> None:
    url, _ = server
    async with ClientSession(url) as session:
        asked = {"messages": [{"role": "user", "content": "a b c d e f"}], "max_tokens": 2}
        for _ in range(2):
            async with session.post("/v1/chat/completions", json=asked) as response:
                assert response.status == 200
        async with session.get("/metrics") as response:
            families = text_string_to_metric_families(await response.text())
            samples = [sample for family in families for sample in family.samples]
        async with session.get("/health") as response:
            assert response.status == 200
    values = {sample.name: sample.value for sample in samples}
    assert values["vllm:prefix_cache_queries_total"] == 12
    assert values["vllm:prefix_cache_hits_total"] == 4
    assert values["vllm:prompt_tokens_total"] == 12
    assert values["vllm:generation_tokens_total"] == 4
    assert values["vllm:num_preemptions_total"] == 0
    assert values["vllm:kv_cache_usage_perc"] == 0
    sizes = next(sample for sample in samples if sample.name == "vllm:cache_config_info")
    assert sizes.labels["num_gpu_blocks"] == "1001"
    reasons = {s.labels["reason"] for s in samples if s.name == "vllm:admission_rejections_total"}
    assert reasons == {"max_num_queued_reqs", "max_num_queued_tokens"}


def test_words_are_counted_as_they_are_told() -> None:
    value = [
        {"role": "user", "content": [{"type": "text", "text": "one two"}, {"text": "three"}]},
        [1, 2, 3],
        "four",
        None,
    ]
    assert list(words_of(value)) == ["one", "two", "three", "1", "2", "3", "four"]
    assert count_words(value) == 7


def test_a_block_stands_for_all_before_it() -> None:
    one, other = block_hashes(list("abcdefgh"), 2), block_hashes(list("xbcdefgh"), 2)
    assert len(one) == 4
    assert not set(one) & set(other)
    assert block_hashes(list("abcdefgh"), 3) == block_hashes(list("abcdef"), 3)
