"""Registered models as callers meet them: a gateway over two pools, and the registry beside it."""

from __future__ import annotations

import shlex
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from sluice.backends.worker.manifest import manifest_of
from sluice.gateway.registry.stages import Promotion
from sluice.gateway.registry.store import Registry
from sluice.gateway.registry.versions import ModelVersion
from sluice.router.policy import takes_part
from tests.backends.worker import fake_engine
from tests.gateway.registry.samples import new
from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import Gateway, Process, free_port, sluice
from tests.harness.polling import eventually
from tests.harness.upstream import Upstream


class Pools:
    """A gateway, and the upstreams behind its pools."""

    def __init__(self, start: StartGateway) -> None:
        self.blue, self.green = Upstream(), Upstream()
        pools = {
            name: {"kind": "vllm", "replicas": [upstream.url.removesuffix("/v1")]}
            for name, upstream in (("blue", self.blue), ("green", self.green))
        }
        config = {
            "providers": {
                **pools,
                "workers": {"kind": "vllm", "pool": {"discover": True}},
                "sim": {"kind": "simulator"},
            },
            "models": [model("own", {"provider": "sim", "model": "sim"})],
        }
        self.gateway: Gateway = start("registry", config)

    def ask(self, name: str, session: str | None = None, **members: Any) -> Any:
        """One chat request's answer, which must be a good one."""
        body = {
            "model": name,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 5,
            **members,
        }
        headers = {} if session is None else {"x-session-id": session}
        answer = self.gateway.request("POST", "/v1/chat/completions", body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    def listed(self, name: str) -> bool:
        """Whether callers are told of a model."""
        return name in {each["id"] for each in self.gateway.api("GET", "/v1/models")["data"]}


@pytest.fixture(scope="module")
def pools(start_gateway: StartGateway) -> Iterator[Pools]:
    made = Pools(start_gateway)
    yield made
    made.blue.close()
    made.green.close()


async def nothing_is_noted(*_: Any, **__: Any) -> None:
    """No journal."""


@pytest.fixture
async def registry(pools: Pools) -> AsyncIterator[Registry[str]]:
    """The registry, with all stages empty at the end."""
    async with asyncpg.create_pool(
        pools.gateway.env["SLUICE_DATABASE_URL"], min_size=1, max_size=2
    ) as pool:
        yield Registry(pool, nothing_is_noted)
        await pool.execute("UPDATE model_versions SET stage = NULL, share = NULL")


@pytest.fixture
async def prod(registry: Registry[str], pools: Pools) -> ModelVersion:
    """A version in prod, which is served."""
    given = new(
        name=f"llama-{uuid.uuid4().hex[:8]}",
        pool="blue",
        price={"input_per_mtok": "1000000", "output_per_mtok": "0"},
        sampling={"temperature": 0.25},
        capabilities=["chat"],
    )
    await registry.create(given, "ann")
    made = await registry.promote(given.name, "1", Promotion(), None, "ann")
    eventually(lambda: pools.listed(given.name), 1.0)
    return made


async def tried(registry: Registry[str], name: str, stage: Any, share: float) -> None:
    """A second version, in the other pool."""
    await registry.create(new(name=name, version="2", pool="green", capabilities=["chat"]), "ann")
    await registry.promote(name, "2", Promotion(stage=stage, share=share), None, "ann")


async def test_it_is_served_with_its_sampling_and_charged_its_price(
    pools: Pools, prod: ModelVersion
) -> None:
    answer = pools.ask(prod.name)
    assert pools.blue.calls_with(prod.name)[-1].json["temperature"] == 0.25
    record = pools.gateway.record(answer.headers["x-request-id"])
    assert record["deployment"] == f"blue/{prod.name}"
    assert float(record["cost_usd"]) == 11.0


async def test_it_is_gone_within_a_second_when_it_is_retired(
    pools: Pools, registry: Registry[str], prod: ModelVersion
) -> None:
    await registry.retire(prod.name, "1", None, "ann")
    eventually(lambda: not pools.listed(prod.name), 1.0)
    refused = pools.gateway.request(
        "POST", "/v1/chat/completions", {"model": prod.name, "messages": [], "max_tokens": 1}
    )
    assert refused.status_code in (400, 404)


async def test_a_conversation_stays_with_the_version_that_it_began_with(
    pools: Pools, registry: Registry[str], prod: ModelVersion
) -> None:
    await tried(registry, prod.name, "canary", 40.0)
    eventually(lambda: pools.ask(prod.name) and pools.green.calls_with(prod.name), 20.0)
    for session in [f"session-{number}" for number in range(12)]:
        for _ in range(2):
            count = len(pools.green.calls_with(prod.name))
            pools.ask(prod.name, session)
            reached = len(pools.green.calls_with(prod.name)) > count
            assert reached == takes_part(prod.name, session, 40.0)


async def test_where_the_canary_fails_the_proven_version_answers(
    pools: Pools, registry: Registry[str], prod: ModelVersion
) -> None:
    pools.green.on(prod.name, lambda call: call.respond(500, {"error": {"message": "no"}}))
    await tried(registry, prod.name, "canary", 100.0)
    eventually(lambda: pools.ask(prod.name) and pools.green.calls_with(prod.name), 20.0)


async def test_a_shadow_is_asked_and_never_heard_or_charged(
    pools: Pools, registry: Registry[str], prod: ModelVersion
) -> None:
    await tried(registry, prod.name, "shadow", 100.0)
    eventually(lambda: pools.ask(prod.name) and pools.green.calls_with(prod.name), 20.0)
    answer = pools.ask(prod.name, stream=True)
    assert pools.gateway.record(answer.headers["x-request-id"])["deployment"].startswith("blue/")
    eventually(
        lambda: pools.gateway.metric("gw_shadow_requests_total", model=prod.name, outcome="ok") >= 2
    )
    id_of_copy = pools.green.calls_with(prod.name)[-1].headers["x-request-id"]
    assert id_of_copy == f"{answer.headers['x-request-id']}-shadow"


async def test_the_configuration_wins(
    pools: Pools, registry: Registry[str], prod: ModelVersion
) -> None:
    await registry.retire(prod.name, "1", None, "ann")
    await registry.create(new(name="own", pool="blue"), "ann")
    await registry.promote("own", "1", Promotion(), None, "ann")
    eventually(lambda: "gives way to the configuration" in pools.gateway.log_text())
    pools.ask("own")
    assert pools.blue.calls_with('"own"') == []


async def test_a_worker_serves_it_and_takes_nothing_two_seconds_after_its_death(
    pools: Pools, registry: Registry[str], tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    manifest = msgspec.to_builtins(manifest_of(weights))
    name = f"served-{uuid.uuid4().hex[:8]}"
    given = new(name=name, pool="workers", weights=str(weights), manifest=manifest)
    await registry.create(given, "ann")
    version = await registry.promote(name, "1", Promotion(), None, "ann")
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(version))
    port = free_port()
    engine = shlex.join([sys.executable, fake_engine.__file__])
    command = sluice(
        *("worker", "--model-file", str(tmp_path / "model.json"), "--no-verified-cache"),
        *("--host", "127.0.0.1", "--port", str(port), "--engine-command", engine),
        *("--advertise", f"http://127.0.0.1:{port}", "--"),
        *("--journal", str(tmp_path / "journal")),
    )
    worker = Process(command, pools.gateway.env, tmp_path / "worker.log")

    def asked() -> int:
        body = {"model": name, "prompt": "hi", "max_tokens": 3}
        return pools.gateway.request("POST", "/v1/completions", body).status_code

    worker.start()
    try:
        eventually(lambda: asked() == 200, 60.0)
    finally:
        worker.kill()
    killed = time.monotonic()
    eventually(lambda: asked() != 200, 2.0)
    while time.monotonic() < killed + 2.0:
        assert asked() != 200
