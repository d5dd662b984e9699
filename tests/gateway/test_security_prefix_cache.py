"""Isolated teams: what one has in a vLLM's prefix cache neither serves another nor shows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import model
from tests.harness.gateway import ADMIN_KEY, TEAM_KEY, Gateway
from tests.harness.polling import eventually
from tests.harness.secured import DATA_PLANE, another_gateway, request_body
from tests.harness.upstream import Upstream


@dataclass(frozen=True)
class Tenant:
    """A team's key at a gateway."""

    gateway: Gateway
    key: str

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.gateway.request("POST", path, body, key=self.key)


def isolated_team(gateway: Gateway, name: str) -> Tenant:
    """A new team that asks for isolation, once the gateway knows."""
    gateway.api("POST", "/admin/teams", {"name": name}, key=ADMIN_KEY)
    key = gateway.api("POST", f"/admin/teams/{name}/keys", {}, key=ADMIN_KEY)["key"]

    async def isolate() -> None:
        connection = await asyncpg.connect(gateway.env["SLUICE_DATABASE_URL"])
        limits = json.dumps({"isolate_prefix_cache": True, "default_max_tokens": 1})
        await connection.execute("UPDATE teams SET limits = $2 WHERE name = $1", name, limits)
        await connection.close()

    asyncio.run(isolate())
    # A key whose team has a default bound may leave it out: then the change is in force.
    probe = {"model": "simulated", "messages": [{"role": "user", "content": "x"}]}
    tenant = Tenant(gateway, key)
    eventually(lambda: tenant.post("/v1/chat/completions", probe).status_code == 200)
    return tenant


@pytest.fixture(scope="module")
def tenants(secured: Gateway) -> tuple[Tenant, Tenant, Tenant]:
    """Two isolated teams, and one that shares."""
    return (
        isolated_team(secured, "isolated-a"),
        isolated_team(secured, "isolated-b"),
        Tenant(secured, TEAM_KEY),
    )


@pytest.mark.parametrize(("operation", "path", "stream"), DATA_PLANE)
def test_every_endpoint_sends_a_vllm_the_salt_of_the_team(
    tenants: tuple[Tenant, Tenant, Tenant],
    secured_upstream: Upstream,
    operation: str,
    path: str,
    stream: bool,
) -> None:
    count = iter(range(1000))

    def salt(tenant: Tenant, **more: Any) -> str | None:
        marker = f"salt-{operation}-{stream}-{next(count)}-end"
        tenant.post(path, request_body(operation, "vllm-alias", marker, stream, **more))
        given: str | None = secured_upstream.call_with(marker).json.get("cache_salt")
        return given

    first, second, sharing = tenants
    own = salt(first)
    assert own is not None
    assert len(own) == 64
    assert salt(first) == own
    assert salt(second) not in (None, own)
    assert salt(sharing) is None
    # A caller's own salt divides its team's cache, and opens no other team's.
    chosen = salt(first, cache_salt="mine")
    assert chosen not in (None, own, "mine")
    assert salt(second, cache_salt="mine") not in (None, chosen, "mine")
    assert salt(sharing, cache_salt=own) not in (None, own)


def test_a_salt_is_the_same_for_all_endpoints_and_for_upstreams_of_other_kinds_there_is_none(
    tenants: tuple[Tenant, Tenant, Tenant], secured_upstream: Upstream
) -> None:
    salts = set()
    for operation, path, stream in DATA_PLANE:
        marker = f"one-salt-{operation}-{stream}-end"
        tenants[0].post(path, request_body(operation, "vllm-alias", marker, stream))
        salts.add(secured_upstream.call_with(marker).json["cache_salt"])
        for other in ("openai-alias", "anthropic-alias"):
            marker = f"no-salt-{operation}-{stream}-{other}-end"
            tenants[0].post(path, request_body(operation, other, marker, stream))
            for call in secured_upstream.calls_with(marker):
                assert "cache_salt" not in call.json
    assert len(salts) == 1


def test_a_salt_that_is_no_text_is_refused_by_name(
    tenants: tuple[Tenant, Tenant, Tenant],
) -> None:
    for tenant in tenants:
        body = request_body("chat", "vllm-alias", "x", False, cache_salt=7)
        answer = tenant.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "cache_salt"


@pytest.mark.vllm
def test_a_real_vllm_serves_a_team_from_its_own_prefixes_only(
    secured: Gateway, vllm_engine: VllmEngine, tmp_path: Path
) -> None:
    config = {
        "providers": {
            "pool": {"kind": "vllm", "replicas": [vllm_engine.url]},
            "sim": {"kind": "simulator"},
        },
        "models": [
            model(
                "tiny",
                {"provider": "pool", "model": vllm_engine.model},
                context_length=2048,
                capabilities=["chat", "completions"],
            ),
            model("simulated", {"provider": "sim", "model": "sim"}),
        ],
    }
    gateway = another_gateway(secured, config, tmp_path)
    gateway.start()
    try:
        check_isolation(isolated_team(gateway, "first"), isolated_team(gateway, "second"))
    finally:
        gateway.stop()


def check_isolation(first: Tenant, second: Tenant) -> None:
    """The same prompt from two teams, twice each."""
    prompt = "a company's secret plan, in some detail; " * 40

    def cached(tenant: Tenant) -> int:
        body = request_body("chat", "tiny", prompt, False, max_tokens=1)
        usage = tenant.post("/v1/chat/completions", body).json()["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    assert cached(first) == 0
    assert cached(first) >= 128
    assert cached(second) == 0
    assert cached(second) >= 128
