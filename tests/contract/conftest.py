"""A gateway before one scripted upstream that is known as vLLM, OpenAI-compatible and Anthropic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import DefaultHttpxClient, OpenAI

from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.upstream import Upstream

#: Their models' names are those of the kinds; `vendor/model` and `claude-next` are more.
KINDS = ["vllm", "compatible", "claude"]


#: Tests whose upstream asks to be left alone: each has providers of its own, `<name>-<kind>`.
RESTING = ["a07", "a08", "a09", "a10-503", "a10-529", "a14-401", "a14-403", "a15", "c32", "n06"]


def providers(url: str) -> dict[str, dict[str, Any]]:
    """One of each kind."""
    base = url.removesuffix("/v1")
    return {
        "vllm": {"kind": "vllm", "replicas": [base]},
        "compatible": {"kind": "openai", "api_key": "COMPATIBLE-SECRET", "base_url": url},
        "claude": {"kind": "anthropic", "api_key": "ANTHROPIC-SECRET", "base_url": base},
    }


def contract_config(url: str) -> dict[str, Any]:
    resting = {f"{name}-{kind}": kind for name in RESTING for kind in KINDS}
    kinds = providers(url)
    chat = ["chat", "reasoning"]
    return {
        "providers": kinds | {name: kinds[kind] for name, kind in resting.items()},
        "models": [
            model(
                "vllm",
                {"provider": "vllm", "model": "backend-model"},
                capabilities=["chat", "completions", "embeddings", "reasoning"],
            ),
            model("compatible", {"provider": "compatible", "model": "backend-model"}),
            model("vendor/model", {"provider": "compatible", "model": "backend-model"}),
            model(
                "claude",
                {"provider": "claude", "model": "claude-opus-4-6"},
                capabilities=chat,
            ),
            model(
                "claude-next",
                {"provider": "claude", "model": "claude-opus-5"},
                capabilities=chat,
            ),
            *(
                model(name, {"provider": name, "model": "claude-opus-4-6"}, capabilities=["chat"])
                for name in resting
            ),
        ],
        # one attempt of ours, so that what the upstream counts is the client's own trying
        "dispatch": {
            "attempts": 1,
            "breaker": {"min_calls": 1_000_000},
        },
        "server": {"max_body_bytes": 1_000_000, "drain_seconds": 5, "heartbeat_seconds": 0.3},
    }


@pytest.fixture(scope="session")
def scripted() -> Iterator[Upstream]:
    """The upstream behind `site`."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="session")
def site(start_gateway: StartGateway, scripted: Upstream) -> Gateway:
    """The gateway, with its billing consumer."""
    return start_gateway("contract", contract_config(scripted.url))


@pytest.fixture
def sdk(site: Gateway) -> Iterator[OpenAI]:
    """OpenAI's SDK, without retries."""
    with OpenAI(base_url=f"{site.url}/v1", api_key=TEAM_KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def tried() -> list[Any]:
    """The requests that `patient` sent."""
    return []


@pytest.fixture
def patient(site: Gateway, tried: list[Any]) -> Iterator[OpenAI]:
    """OpenAI's SDK with the retries that it has by default."""
    http = DefaultHttpxClient(event_hooks={"request": [tried.append]})
    with OpenAI(base_url=f"{site.url}/v1", api_key=TEAM_KEY, http_client=http) as client:
        yield client


@pytest.fixture
def claude(site: Gateway) -> Iterator[Anthropic]:
    """Anthropic's SDK, without retries."""
    with Anthropic(base_url=site.url, api_key=TEAM_KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def bare(site: Gateway) -> Iterator[httpx.Client]:
    """No SDK, with the team's key."""
    headers = {"authorization": f"Bearer {TEAM_KEY}"}
    with httpx.Client(base_url=site.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture(scope="session")
def stranger_key(site: Gateway) -> str:
    """The key of another team, in force."""
    site.api("POST", "/admin/teams", {"name": "stranger"}, key=ADMIN_KEY)
    key: str = site.api("POST", "/admin/teams/stranger/keys", {}, key=ADMIN_KEY)["key"]
    eventually(lambda: site.request("GET", "/v1/models", key=key).status_code == 200)
    return key
