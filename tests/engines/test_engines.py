"""The engines themselves: what the other tests take for granted about them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from openai import APIStatusError, OpenAI
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
)

from tests.engines import Engine, EngineError
from tests.engines.katan import KatanEngine
from tests.engines.vllm_engine import END_TOKEN_ID, VllmEngine

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
CALL: ChatCompletionMessageFunctionToolCallParam = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
}
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["c", "f"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}
ROOT = Path(__file__).resolve().parents[2]


def client(engine: Engine) -> OpenAI:
    return OpenAI(base_url=engine.base_url, api_key="unused", max_retries=0, timeout=60)


@pytest.fixture
def vllm(vllm_engine: VllmEngine) -> Iterator[OpenAI]:
    with client(vllm_engine) as connected:
        yield connected


@pytest.fixture
def echo(katan: KatanEngine) -> Iterator[OpenAI]:
    with client(katan) as connected:
        yield connected


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True


def listens(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.vllm
def test_vllm_answers_a_chat_to_the_last_token(vllm: OpenAI) -> None:
    answer = vllm.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20)

    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20


@pytest.mark.vllm
def test_vllm_streams_the_same_answer_and_its_usage_last(vllm: OpenAI) -> None:
    whole = vllm.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20)
    chunks = list(
        vllm.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert text_of(chunks) == whole.choices[0].message.content
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20


@pytest.mark.vllm
def test_vllm_answers_different_prompts_differently(vllm: OpenAI) -> None:
    prompts = ["hello there", "hello here", "why?", "one two three four", "the end"]
    answers = {
        vllm.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": prompt}], max_tokens=20
        )
        .choices[0]
        .message.content
        for prompt in prompts
    }

    assert len(answers) == len(prompts)


@pytest.mark.vllm
def test_vllm_takes_every_role(vllm: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "call f"}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "done"},
    ]

    answer = vllm.chat.completions.create(model="tiny", messages=messages, max_tokens=2)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 40


@pytest.mark.vllm
def test_vllm_stops_where_the_end_token_is_forced(vllm: OpenAI) -> None:
    answer = vllm.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, logit_bias={str(END_TOKEN_ID): 100}
    )

    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1


@pytest.mark.vllm
def test_vllm_calls_a_tool_with_valid_arguments(vllm: OpenAI) -> None:
    answer = vllm.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=200,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    )

    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["unit"] in {"c", "f"}
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.vllm
def test_vllm_finds_a_repeated_prompt_in_its_cache(vllm: OpenAI, vllm_engine: VllmEngine) -> None:
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "zebra crossing " * 150}]
    hits = vllm_engine.metric("vllm:prefix_cache_hits_total")
    vllm.chat.completions.create(model="tiny", messages=long, max_tokens=1)
    answer = vllm.chat.completions.create(model="tiny", messages=long, max_tokens=1)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= 128
    assert vllm_engine.metric("vllm:prefix_cache_hits_total") - hits >= cached


@pytest.mark.vllm
def test_vllm_aborts_the_request_of_a_client_that_leaves(
    vllm: OpenAI, vllm_engine: VllmEngine
) -> None:
    aborted = vllm_engine.aborted()
    stream = vllm.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=2000, stream=True
    )
    next(stream)
    assert eventually(lambda: vllm_engine.running() == 1, within_s=2)
    stream.close()

    assert eventually(lambda: vllm_engine.running() == 0, within_s=1)
    assert eventually(lambda: vllm_engine.aborted() == aborted + 1, within_s=1)
    generated = vllm_engine.generated_tokens()
    assert not eventually(lambda: vllm_engine.generated_tokens() > generated, within_s=0.3)


@pytest.mark.vllm
def test_vllm_refuses_more_tokens_than_it_can_hold(vllm: OpenAI) -> None:
    with pytest.raises(APIStatusError) as refused:
        vllm.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4000)

    assert refused.value.status_code == 400
    assert refused.value.type == "BadRequestError"


@pytest.mark.vllm
def test_a_metric_that_does_not_exist_is_an_error(vllm_engine: VllmEngine) -> None:
    with pytest.raises(LookupError):
        vllm_engine.metric("vllm:no_such_metric")


@pytest.mark.vllm
def test_vllm_embeds(vllm_embed_engine: VllmEngine) -> None:
    with client(vllm_embed_engine) as embed:
        answer = embed.embeddings.create(model="tiny", input=["one", "another one"])

    assert [len(item.embedding) for item in answer.data] == [256, 256]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens > 0


@pytest.mark.katan
def test_katan_answers_a_chat(echo: OpenAI) -> None:
    answer = echo.chat.completions.create(model="katan", messages=HELLO, max_tokens=20)

    assert "hello there" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2


@pytest.mark.katan
def test_katan_streams_its_usage_with_the_finish_reason(echo: OpenAI) -> None:
    chunks = list(
        echo.chat.completions.create(model="katan", messages=HELLO, max_tokens=20, stream=True)
    )

    assert "hello there" in text_of(chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 2


@pytest.mark.katan
def test_katan_lists_its_model(echo: OpenAI) -> None:
    assert [model.id for model in echo.models.list()] == ["katan"]


@pytest.mark.katan
def test_katan_has_no_embeddings(echo: OpenAI) -> None:
    with pytest.raises(APIStatusError) as refused:
        echo.embeddings.create(model="katan", input="one")

    assert refused.value.status_code == 404


@pytest.mark.katan
def test_katan_fails_on_demand(katan_python: Path, tmp_path: Path) -> None:
    flags = ["--rate-limit-after", "1"]
    with (
        KatanEngine(katan_python, log=tmp_path / "log", extra_args=flags) as engine,
        client(engine) as limited,
    ):
        limited.chat.completions.create(model="katan", messages=HELLO)
        with pytest.raises(APIStatusError) as refused:
            limited.chat.completions.create(model="katan", messages=HELLO)

    assert refused.value.status_code == 429


@pytest.mark.katan
def test_an_engine_that_dies_says_why(katan_python: Path, tmp_path: Path) -> None:
    engine = KatanEngine(katan_python, log=tmp_path / "log", extra_args=["--no-such-flag"])

    with pytest.raises(EngineError, match=r"No such option.*--no-such-flag"):
        engine.start()


@pytest.mark.katan
def test_an_engine_starts_again_after_a_crash(katan_python: Path, tmp_path: Path) -> None:
    with KatanEngine(katan_python, log=tmp_path / "log") as engine:
        engine.signal(signal.SIGKILL)
        engine.stop()
        with pytest.raises(OSError, match="refused"):
            engine.get("/health")
        engine.start()
        engine.get("/health")


@pytest.mark.katan
def test_an_engine_ends_with_killed_tests(katan_python: Path, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from tests.engines.katan import KatanEngine\n"
        "engine = KatanEngine(pathlib.Path(sys.argv[1]), log=pathlib.Path(sys.argv[2]))\n"
        "engine.start()\n"
        "print(engine.url, flush=True)\n"
        "sys.stdin.read()\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", program, str(katan_python), str(tmp_path / "log")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        url = tests.stdout.readline().strip()
        assert listens(url)
        tests.kill()

        assert eventually(lambda: not listens(url), within_s=5)
