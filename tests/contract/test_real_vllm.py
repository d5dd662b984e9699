"""C over the real vLLM, where a script would only repeat what we believe of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.contract.scripts import ask
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import model
from tests.harness.gateway import TEAM_KEY, Gateway

pytestmark = pytest.mark.vllm

#: A model of random weights writes strings without end.
CITY = {"type": "string", "enum": ["Rome", "Oslo"]}
PARAMETERS = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


class Verdict(BaseModel):
    verdict: Literal["yes", "no"]


@pytest.fixture(scope="module")
def real_site(
    vllm_engine: VllmEngine,
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """A gateway before the engine; nobody reads its usage."""
    config = {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm_engine.url]}},
        "models": [
            model(
                "real",
                {"provider": "gpu", "model": vllm_engine.model},
                context_length=2048,
                capabilities=["chat", "reasoning"],
            )
        ],
    }
    directory = tmp_path_factory.mktemp("contract-vllm")
    gateway = Gateway(config, new_database("contract-vllm"), new_redis(), directory)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
def real(real_site: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real_site.url}/v1", api_key=TEAM_KEY, max_retries=0) as client:
        yield client


def said(client: OpenAI, **more: Any) -> Any:
    """The choice that the engine makes."""
    return client.chat.completions.create(**ask("Say it.", "real", **more)).choices[0]


def test_c14_a_bound_of_one_token_cuts(real: OpenAI) -> None:
    turns: Any = [{"role": "user", "content": "Say it."}]
    answer = real.chat.completions.create(model="real", max_completion_tokens=1, messages=turns)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 1


def test_c16_a_stop_string_ends_and_is_left_out(real: OpenAI) -> None:
    whole = said(real, max_tokens=24).message.content
    stop = whole[len(whole) // 2 :][:3]
    cut = said(real, max_tokens=24, stop=[stop])
    assert cut.finish_reason == "stop"
    assert cut.message.content == whole[: whole.index(stop)]


@pytest.mark.parametrize("stream", [False, True])
def test_c09_and_case_14_a_named_tool_is_called(real: OpenAI, stream: bool) -> None:
    request = ask("Weather?", "real", tools=TOOLS, tool_choice=NAMED)
    if stream:
        with real.chat.completions.stream(**request) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = real.chat.completions.create(**request).choices[0]
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments)["city"] in CITY["enum"]
    assert choice.finish_reason == "tool_calls"


def test_c12_a_schema_is_kept_to(real: OpenAI) -> None:
    parsed = real.chat.completions.parse(**ask("Verdict?", "real"), response_format=Verdict)
    assert parsed.choices[0].message.parsed in (Verdict(verdict="yes"), Verdict(verdict="no"))


def test_c20_a_file_is_a_400(real: OpenAI) -> None:
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    turns: Any = [{"role": "user", "content": [{"type": "file", "file": file}]}]
    with pytest.raises(openai.BadRequestError) as raised:
        real.chat.completions.create(model="real", max_tokens=5, messages=turns)
    assert raised.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "choices",
    [
        {"structured_outputs": {"choice": ["left", "right"]}},
        {"guided_choice": ["left", "right"]},  # ignored by vLLM itself
    ],
)
def test_c23_vllms_own_members_have_their_effect(real: OpenAI, choices: dict[str, Any]) -> None:
    answer = real.chat.completions.create(**ask("Which?", "real"), extra_body=choices)
    assert answer.choices[0].message.content in ("left", "right")


@pytest.mark.parametrize("stream", [False, True])
def test_c22_functions_of_old_are_called(real: OpenAI, stream: bool) -> None:
    functions: Any = [{"name": "weather", "parameters": PARAMETERS}]
    request = ask("Rome?", "real", functions=functions, function_call={"name": "weather"})
    answer: Any = real.chat.completions.create(**request | {"max_tokens": 60}, stream=stream)
    parts = list(answer) if stream else [answer]
    choices = [part.choices[0] for part in parts if part.choices]
    calls = [(c.delta if stream else c.message).function_call for c in choices]
    assert "".join(call.name or "" for call in calls if call) == "weather"
    arguments = json.loads("".join(call.arguments or "" for call in calls if call))
    assert arguments["city"] in ("Rome", "Oslo")
    assert choices[-1].finish_reason == "function_call"


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_c25_an_effort_is_taken(real: OpenAI, effort: str) -> None:
    assert said(real, reasoning_effort=effort, max_tokens=8).message.content


@pytest.mark.parametrize("more", [{"tool_choice": "required"}, {"tools": []}])
def test_c30_and_c31_tools_that_are_none_are_the_callers_fault_at_most(
    real: OpenAI, more: dict[str, Any]
) -> None:
    try:
        said(real, **more)
    except openai.BadRequestError as error:
        assert error.type == "invalid_request_error"  # noqa: PT017 - either is right
