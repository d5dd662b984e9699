"""Two SDKs, three upstreams, one session: the transcripts agree, and nothing is lost on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.agents import anthropic_mouth, openai_mouth
from tests.agents.anthropic_mouth import AnthropicMouth
from tests.agents.model_server import ModelServer
from tests.agents.openai_mouth import OpenAIMouth
from tests.agents.sessions import AnthropicAgent, Event, OpenAIAgent, play
from tests.harness.fixtures import model
from tests.harness.gateway import TEAM_KEY, Gateway, Process, sluice

AGENTS = {"openai": OpenAIAgent, "anthropic": AnthropicAgent}


class Site(NamedTuple):
    """A gateway and the model servers behind it."""

    gateway: Gateway
    servers: dict[str, ModelServer]


@pytest.fixture(scope="module")
def start_site(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, dict[str, Any]], Gateway]]:
    """Starts a gateway with billing for a configuration."""
    started: list[Process] = []

    def start(name: str, config: dict[str, Any]) -> Gateway:
        directory = tmp_path_factory.mktemp(name)
        gateway = Gateway(config, new_database(name), new_redis(), directory)
        gateway.start()
        billing = Process(sluice("billing"), gateway.env, directory / "billing.log")
        billing.start()
        started.extend((gateway, billing))
        return gateway

    yield start
    for process in started:
        process.stop()


@pytest.fixture(scope="module")
def site(start_site: Callable[[str, dict[str, Any]], Gateway]) -> Iterator[Site]:
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
    yield Site(start_site("agents", config), servers)
    for server in servers.values():
        server.close()


def transcript(sdk: str, gateway: Gateway, name: str, temperature: float | None = None) -> list[Event]:
    """The session by an SDK with a model."""
    with contextlib.closing(AGENTS[sdk](gateway.url, TEAM_KEY, name, temperature)) as agent:
        return list(play(agent))


@pytest.fixture(scope="module")
def transcripts(site: Site) -> dict[tuple[str, str], list[Event]]:
    """By SDK and model."""
    pairs = [(sdk, name) for sdk in AGENTS for name in site.servers]
    return {(sdk, name): transcript(sdk, site.gateway, name) for sdk, name in pairs}


def test_temporary(transcripts: dict[tuple[str, str], list[Event]], site: Site) -> None:
    for key, events in transcripts.items():
        print("##", key, site.servers[key[1]].books.refusals)
        for event in events:
            print("  ", event)
    raise AssertionError


@pytest.mark.vllm
@pytest.mark.parametrize("sdk", AGENTS)
def test_temporary_vllm(vllm_engine: Any, start_site: Any, sdk: str) -> None:
    config = {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm_engine.url]}},
        "models": [model("llama", {"provider": "gpu", "model": "tiny"}, context_length=2048)],
    }
    gateway = start_site("agents-vllm-"+sdk, config)
    for event in transcript(sdk, gateway, "llama", 1.0):
        print("  ", event)
    raise AssertionError
