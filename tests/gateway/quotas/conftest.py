"""Two gateways that share limits, before a scripted upstream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.harness.fixtures import StartGateway, model
from tests.harness.gateway import Gateway
from tests.harness.limited import Limited
from tests.harness.twins import OPERATIONS, another
from tests.harness.upstream import Upstream

EVERYTHING = ["chat", "completions", "embeddings", "moderations"]

#: Models with an upstream of their own, which one exit makes rest: one for each operation.
RESTING = [f"resting-{operation}-{stream}" for operation, _, stream in OPERATIONS]


def limited_config(url: str) -> dict[str, Any]:
    """`good`; `hasty` with deadlines of less than a second; `resting-*`."""
    short = {"connect": 1, "first_token": 0.3, "between_tokens": 0.3, "total": 1}
    kinds = {
        "good": {"kind": "openai", "api_key": "any", "base_url": url},
        "hasty": {"kind": "openai", "api_key": "any", "base_url": url, "timeouts": short},
        **{name: {"kind": "openai", "api_key": "any", "base_url": url} for name in RESTING},
    }
    return {
        "providers": kinds,
        "models": [
            model(name, {"provider": name, "model": "backend-model"}, capabilities=EVERYTHING)
            for name in kinds
        ],
        "dispatch": {"attempts": 1, "breaker": {"min_calls": 1_000_000}},
        "server": {"drain_seconds": 5, "heartbeat_seconds": 0.5},
    }


@dataclass
class Pair:
    """Two gateways that share limits."""

    one: Gateway
    other: Gateway
    upstream: Upstream
    tenants: Limited

    def post(
        self, path: str, body: Any, key: str, gateway: Gateway | None = None
    ) -> httpx.Response:
        """Ask, and read the answer."""
        return (gateway or self.one).request("POST", path, body, key)


@pytest.fixture(scope="session")
def limited(
    start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """See the module."""
    upstream = Upstream()
    config = limited_config(upstream.url)
    one = start_gateway("limited", config)
    other = another(one, config, tmp_path_factory.mktemp("limited-other"), "other")
    other.start()
    yield Pair(one, other, upstream, Limited(one, other))
    other.stop()
    upstream.close()
