"""Session fixtures: one gateway before scripted and simulated upstreams serves most tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from sluice.migrations import migrate
from tests.harness.gateway import TEAM_KEY, Gateway, Process, free_port, sluice
from tests.harness.upstream import Upstream
from tests.servers import RunningServer

PRICE = {"input_per_mtok": "3", "output_per_mtok": "15", "cached_input_per_mtok": "0.3"}
#: Models with an upstream of their own, for tests that make it ask for rest.
RESTING = tuple(
    f"resting-{status}-{mode}"
    for status in (401, 403, 429, 503, 529)
    for mode in ("whole", "stream")
)
ALL = ["chat", "completions", "embeddings"]


StartGateway = Callable[[str, dict[str, Any]], Gateway]


def model(name: str, *deployments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A model's configuration."""
    return {
        "name": name,
        "context_length": 100_000,
        "capabilities": ALL,
        "price": PRICE,
        "deployments": list(deployments),
        **more,
    }


def scripted_config(upstream: Upstream) -> dict[str, Any]:
    """Models over the scripted upstream: `vllm-alias` and `openai-alias` by the kind of their
    provider, `impatient` with short deadlines, `fallback` with a dead deployment in front,
    `refused` with nothing else; `simulated` over the simulator."""
    base = upstream.url.removesuffix("/v1")
    dead = f"http://127.0.0.1:{free_port()}"
    short = {"connect": 1, "first_token": 1, "between_tokens": 1, "total": 3}
    return {
        "providers": {
            "pool": {"kind": "vllm", "replicas": [base]},
            "compatible": {
                "kind": "openai",
                "api_key": "PROVIDER-SECRET-KEY",
                "base_url": upstream.url,
            },
            "hasty": {"kind": "openai", "base_url": upstream.url, "timeouts": short},
            "dead": {"kind": "openai", "base_url": dead + "/v1?key=URL-SECRET", "timeouts": short},
            "sim": {"kind": "simulator", "ttft_ms": 5, "itl_ms": 1},
            **{name: {"kind": "openai", "base_url": upstream.url} for name in RESTING},
            "slow-sim": {"kind": "simulator", "ttft_ms": 200, "itl_ms": 100},
        },
        "models": [
            model("vllm-alias", {"provider": "pool", "model": "backend-model"}),
            model("openai-alias", {"provider": "compatible", "model": "backend-model"}),
            model("impatient", {"provider": "hasty", "model": "backend-model"}),
            model(
                "fallback",
                {"provider": "dead", "model": "backend-model", "weight": 1_000_000},
                {"provider": "compatible", "model": "backend-model", "weight": 1},
            ),
            model("refused", {"provider": "dead", "model": "backend-model"}),
            model("simulated", {"provider": "sim", "model": "sim"}),
            model("slow", {"provider": "slow-sim", "model": "sim"}),
            model("chat-only", {"provider": "sim", "model": "sim"}, capabilities=["chat"]),
            *(model(name, {"provider": name, "model": "backend-model"}) for name in RESTING),
            model("batch-only", {"provider": "sim", "model": "sim"}, tiers=["batch"]),
        ],
        # what one test's upstream does must not rest another's
        "dispatch": {"breaker": {"min_calls": 1_000_000}},
        "server": {"max_body_bytes": 1_000_000, "drain_seconds": 5, "heartbeat_seconds": 0.5},
    }


@pytest.fixture(scope="session")
def new_database(postgres_url: str) -> Callable[[str], str]:
    """Makes a migrated database and gives its URL."""
    numbers = itertools.count(1)

    def create(name: str) -> str:
        # a fixture of a package is made again when tests of another came in between
        name = f"{name}-{next(numbers)}"

        async def work() -> str:
            connection = await asyncpg.connect(postgres_url)
            try:
                await connection.execute(f'CREATE DATABASE "{name}"')
            finally:
                await connection.close()
            url = postgres_url.replace("/postgres?", f"/{name}?")
            assert url != postgres_url
            await migrate(url)
            return url

        return asyncio.run(work())

    return create


@pytest.fixture(scope="session")
def new_redis(valkey: RunningServer) -> Callable[[], str]:
    """Gives the URL of an empty numbered database of the session's Valkey."""
    numbers = iter(range(1, 64))

    def create() -> str:
        assert valkey.url.endswith("db=0")
        return valkey.url.removesuffix("0") + str(next(numbers))

    return create


@pytest.fixture(scope="session")
def start_gateway(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartGateway]:
    """Starts a gateway with its billing consumer, by name and configuration; both end with the
    session."""
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


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The scripted upstream behind `gateway`."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway, upstream: Upstream) -> Gateway:
    """One gateway with its billing consumer; see `scripted_config`."""
    return start_gateway("gateway", scripted_config(upstream))


@pytest.fixture
def client(gateway: Gateway) -> Iterator[OpenAI]:
    """The official SDK, without retries of its own."""
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=TEAM_KEY, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def async_client(gateway: Gateway) -> Any:
    """The official asynchronous SDK, without retries of its own."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=TEAM_KEY, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    """A bare HTTP client with the team's key."""
    headers = {"authorization": f"Bearer {TEAM_KEY}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as bare:
        yield bare


def logs(directory: Path) -> str:
    """Everything that the processes of a directory logged."""
    return "\n".join(path.read_text(errors="replace") for path in directory.glob("*.log"))
