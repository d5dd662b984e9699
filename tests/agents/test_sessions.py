"""Two SDKs, three upstreams, one session: the transcripts agree, and nothing is lost on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.agents import anthropic_mouth, openai_mouth
from tests.agents.anthropic_mouth import AnthropicMouth
from tests.agents.model_server import Books, ModelServer
from tests.agents.openai_mouth import OpenAIMouth
from tests.agents.sessions import (
    TOOLS,
    AnthropicAgent,
    Event,
    OpenAIAgent,
    Usage,
    Verdict,
    play,
)
from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import TEAM_KEY, Gateway

pytestmark = pytest.mark.slow

AGENTS = {"openai": OpenAIAgent, "anthropic": AnthropicAgent}


class Site(NamedTuple):
    """A gateway and the model servers behind it."""

    gateway: Gateway
    servers: dict[str, ModelServer]


@pytest.fixture(scope="module")
def site(start_gateway: StartGateway) -> Iterator[Site]:
    """A gateway with the model `claude` at the Anthropic server and `gpt` at the OpenAI one."""
    servers: dict[str, ModelServer] = {"claude": AnthropicMouth(), "gpt": OpenAIMouth()}
    capabilities = ["chat", "tools", "vision", "json_schema", "reasoning"]
    config = {
        "providers": {
            "anthropic": {
                "kind": "anthropic",
                "api_key": anthropic_mouth.KEY,
                "base_url": servers["claude"].url,
            },
            "openai": {
                "kind": "openai",
                "api_key": openai_mouth.KEY,
                "base_url": servers["gpt"].url,
                "max_tokens_field": "max_completion_tokens",
            },
        },
        "models": [
            model(
                "claude",
                {"provider": "anthropic", "model": "claude-sonnet-5"},
                capabilities=capabilities,
            ),
            model("gpt", {"provider": "openai", "model": "gpt-x"}, capabilities=capabilities),
        ],
    }
    yield Site(start_gateway("agents", config), servers)
    for server in servers.values():
        server.close()


def transcript(sdk: str, gateway: Gateway, name: str, strict: bool = True) -> list[Event]:
    """The session by an SDK with a model."""
    with contextlib.closing(AGENTS[sdk](gateway.url, TEAM_KEY, name, strict)) as agent:
        return list(play(agent))


@pytest.fixture(scope="module")
def transcripts(site: Site) -> dict[tuple[str, str], list[Event]]:
    """By SDK and model."""
    return {
        (sdk, name): transcript(sdk, site.gateway, name) for sdk in AGENTS for name in site.servers
    }


Calls = tuple[tuple[str, str], ...]
Tokens = tuple[int, int, int, int]

BOTH: Calls = (
    ("get_weather", '{"city": "Rome", "unit": "c"}'),
    ("get_weather", '{"city": "Oslo", "unit": "c"}'),
)
PLAN, LOOK = "Which tools will I need?", "The results are here."
QUOTES = (
    'get_weather {"city": "Rome", "unit": "c"} said 3 degrees.'
    ' get_weather {"city": "Oslo", "unit": "c"} said 4 degrees. THE END and more.'
)
REFUSED = "I will not speak of that."

#: What the model servers' model says to the session: by step the end, the text, the thinking, the
#: calls, and input, cached, output and reasoning tokens.
EXPECTED: list[tuple[str, str, str, str, Calls, Tokens]] = [
    ("calls", "tools", "", PLAN, BOTH, (14, 0, 15, 5)),
    ("quotes", "stop", QUOTES, LOOK, (), (28, 14, 24, 4)),
    ("image", "stop", "I see image/png of 70 bytes.", "", (), (101, 28, 6, 0)),
    ("json", "stop", '{"warmer":"Oslo","sure":true}', PLAN, (), (112, 101, 9, 5)),
    ("named", "tools", "", "", (("get_time", "{}"),), (120, 112, 2, 0)),
    ("stopped", "stop", "get_time {} said noon. ", "", (), (123, 120, 4, 0)),
    ("one call", "tools", "", "", BOTH[:1], (133, 123, 5, 0)),
    ("cut", "length", 'get_weather {"city": "Rome", "unit": "c"}', "", (), (139, 133, 5, 0)),
    ("refused whole", "refusal", REFUSED, "", (), (147, 139, 6, 0)),
    ("refused stream", "refusal", REFUSED, "", (), (147, 139, 6, 0)),
]
TOO_LONG = [
    Event(f"too long {how}", "BadRequestError", status=400, about_length=True)
    for how in ("whole", "stream")
]


def test_the_transcripts_agree(transcripts: dict[tuple[str, str], list[Event]]) -> None:
    expected = [
        Event(step, finish, text, thinking, calls, Usage(*tokens))
        for step, finish, text, thinking, calls, tokens in EXPECTED
    ] + TOO_LONG
    assert len(transcripts) == 4
    for pair, events in transcripts.items():
        assert events == expected, pair


def test_nothing_is_refused_but_what_is_too_long(
    transcripts: dict[tuple[str, str], list[Event]], site: Site
) -> None:
    assert transcripts
    assert [server.books.refusals for server in site.servers.values()] == [[], []]


def test_usage_is_what_the_upstream_reported_and_the_record_says(
    transcripts: dict[tuple[str, str], list[Event]], site: Site
) -> None:
    for (_, name), events in transcripts.items():
        for event in events:
            record = site.gateway.record(event.request_id)
            check_record(record, event)
            if event.usage is not None:
                reported = site.servers[name].books.reports[event.request_id]
                assert dataclasses.astuple(event.usage) == dataclasses.astuple(reported)


def check_record(record: dict[str, Any], event: Event) -> None:
    """The ledger has the same; an error costs nothing."""
    usage = event.usage or Usage(0, 0, 0, 0)
    assert record["status"] == ("ok" if event.usage else "error")
    if event.about_length:
        assert record["error_code"] == "context_length_exceeded"
    assert record["estimated"] is False
    assert record["input_tokens"] == usage.input
    assert record["cached_input_tokens"] == usage.cached
    assert record["output_tokens"] == usage.output


def test_the_upstream_gets_its_own_tool_ids_back(
    transcripts: dict[tuple[str, str], list[Event]], site: Site
) -> None:
    for name, server in site.servers.items():
        assert server.books.returned == server.books.issued
        seen = [ident for sdk in AGENTS for e in transcripts[sdk, name] for ident in e.ids]
        assert len(seen) == len(set(seen)) == len(server.books.issued) == 8
    for name in site.servers:
        ids = [ident for event in transcripts["anthropic", name] for ident in event.ids]
        assert all(re.fullmatch(r"toolu_[a-zA-Z0-9_-]+", ident) for ident in ids)


def test_thinking_goes_back_only_to_where_it_came_from(
    transcripts: dict[tuple[str, str], list[Event]], site: Site
) -> None:
    assert transcripts
    assert site.servers["claude"].books.thoughts > 0
    assert site.servers["gpt"].books.thoughts == 0


@pytest.mark.parametrize(
    "sdk",
    [
        "openai",
        "anthropic",
    ],
)
@pytest.mark.parametrize("first", ["claude", "gpt"])
def test_a_session_may_go_to_the_other_upstream_at_every_turn(
    site: Site, sdk: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fallbacks make it do; only thinking is lost then."""
    for server in site.servers.values():
        monkeypatch.setattr(server, "books", Books())
    names = itertools.cycle(["gpt", "claude"] if first == "claude" else ["claude", "gpt"])
    events: list[Event] = []
    with contextlib.closing(AGENTS[sdk](site.gateway.url, TEAM_KEY, first)) as agent:
        for event in play(agent):
            events.append(event)
            agent.model = next(names)
    assert [server.books.refusals for server in site.servers.values()] == [[], []]
    said = [(event.step, event.finish, event.text, event.calls) for event in events]
    assert said[:10] == [(step, *two, calls) for step, *two, _, calls, _ in EXPECTED]
    assert events[10:] == TOO_LONG


@pytest.fixture(scope="module")
def vllm_site(vllm_engine: VllmEngine, start_gateway: StartGateway) -> Gateway:
    """A gateway with the real vLLM as `llama`."""
    deployment = {"provider": "gpu", "model": vllm_engine.model}
    config = {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm_engine.url]}},
        "models": [model("llama", deployment, context_length=2048, capabilities=["chat", "tools"])],
    }
    return start_gateway("agents-vllm", config)


@pytest.fixture(scope="module")
def noise(vllm_site: Gateway) -> dict[str, list[Event]]:
    """By SDK, the transcript with the real vLLM."""
    return {sdk: transcript(sdk, vllm_site, "llama", strict=False) for sdk in AGENTS}


#: What noise can do: it never stops by itself, and knows no rules; that model doesn't see either.
NOISE = {
    "calls": "length",
    "quotes": "length",
    "image": "BadRequestError",
    "json": "stop",
    "named": "tools",
    "stopped": "length",
    "one call": "tools",
    "cut": "length",
    "refused whole": "length",
    "refused stream": "length",
    "too long whole": "BadRequestError",
    "too long stream": "BadRequestError",
}


@pytest.mark.vllm
def test_the_real_vllm_keeps_to_the_session(noise: dict[str, list[Event]]) -> None:
    for sdk, events in noise.items():
        assert {event.step: event.finish for event in events} == NOISE, sdk
        steps = {event.step: event for event in events}
        assert steps["json"].text in [
            Verdict(warmer=warmer, sure=sure).model_dump_json()
            for warmer in ("Oslo", "Rome")
            for sure in (True, False)
        ]
        assert len(steps["calls"].calls) >= 2
        assert steps["named"].calls == (("get_time", "{}"),)
        assert len(steps["one call"].calls) == 1
        assert not steps["image"].about_length
        assert events[-2:] == TOO_LONG
        ids = [ident for event in events for ident in event.ids]
        assert len(set(ids)) == len(ids)
        bounds = {"calls": 300, "quotes": 60, "stopped": 60, "cut": 5, "refused whole": 40}
        for step, bound in bounds.items():
            usage = steps[step].usage
            assert usage is not None
            assert usage.output == bound


@pytest.mark.vllm
def test_arguments_from_the_real_vllm_fit_their_schemas(noise: dict[str, list[Event]]) -> None:
    for event in [event for events in noise.values() for event in events]:
        assert len(event.ids) == len(event.calls)
        for name, arguments in event.calls:
            given = json.loads(arguments)
            properties = TOOLS[name][1]["properties"]
            assert set(given) == set(properties)
            assert all(value in properties[key]["enum"] for key, value in given.items())


@pytest.mark.vllm
def test_the_real_vllm_reads_the_same_from_both_sdks(noise: dict[str, list[Event]]) -> None:
    """Its answer is greedy: the same noise means the same prompt and the same constraints."""
    first, second = (events[0] for events in noise.values())
    assert first.calls == second.calls
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.input == second.usage.input


@pytest.mark.vllm
def test_usage_of_the_real_vllm_is_the_record_s(
    noise: dict[str, list[Event]], vllm_site: Gateway
) -> None:
    for event in [event for events in noise.values() for event in events]:
        check_record(vllm_site.record(event.request_id), event)
