"""A whole worker in this process: a batch goes to its provider, comes back, is told of."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import OpenAI
from prometheus_client import generate_latest

from sluice.gateway.batch.companions import create_companions
from sluice.gateway.batch.engine import BatchEngine, create_engine
from sluice.gateway.batch.runner import HeldCharges
from sluice.gateway.connections import connect_database, redis_link
from sluice.gateway.environment import Environment
from sluice.gateway.settings import Config
from sluice.gateway.wiring import create_gateway
from tests.gateway.batch.jobs_site import JobsSite, chat_lines
from tests.gateway.batch.native_site import ITEM_NANO_USD
from tests.harness.polling import eventually_async
from tests.harness.provider_batches import OpenAIProvider
from tests.servers import RunningServer

# the application is made with the rest, and not used
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PRICE = {"input_per_mtok": "3", "output_per_mtok": "15"}


def config(provider: OpenAIProvider, receiver: TestServer) -> Config:
    """One provider with batches of its own, which is called live by the same answers."""
    return Config.model_validate(
        {
            "providers": {
                "openai": {
                    "kind": "openai",
                    "base_url": provider.url,
                    "api_key": "provider-key",
                    "native_batch": {"min_items": 3, "poll_seconds": 1},
                }
            },
            "models": [
                {
                    "name": "gpt",
                    "context_length": 8192,
                    "capabilities": ["chat"],
                    "price": PRICE,
                    "deployments": [{"provider": "openai", "model": "upstream-gpt"}],
                }
            ],
            "egress": {"allow_networks": ["127.0.0.1/32"], "ports": [receiver.port]},
        }
    )


class World:
    """A worker, its provider, and a team's receiver of callbacks."""

    def __init__(self, engine: BatchEngine, provider: OpenAIProvider) -> None:
        self.engine = engine
        self.provider = provider
        self.told: list[tuple[dict[str, str], bytes]] = []
        self.callback_url = ""


@pytest.fixture
async def world(
    jobs_site: JobsSite, database: str, valkey: RunningServer, tmp_path: Path
) -> AsyncIterator[World]:
    told: list[tuple[dict[str, str], bytes]] = []

    async def take(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        told.append((headers, await request.read()))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/hook", take)
    receiver = TestServer(app, host="127.0.0.1")
    await receiver.start_server()
    provider = OpenAIProvider()
    await provider.server.start_server()
    await jobs_site.team()
    given = config(provider, receiver)
    environment = Environment.read(
        {"SLUICE_SPOOL_DIR": str(tmp_path / "spool"), "SLUICE_FILES_DIR": str(tmp_path / "own")}
    )
    charges = HeldCharges()
    pool = await connect_database(database)
    gateway = create_gateway(given, environment, pool, redis_link(valkey.url), charges)
    companions = create_companions(given, gateway, jobs_site.storage)
    engine = create_engine(gateway, charges, jobs_site.storage, given.batch, companions)
    await engine.start()
    made = World(engine, provider)
    made.told = told
    made.callback_url = str(receiver.make_url("/hook"))
    yield made
    await engine.stop(1.0)
    await provider.server.close()
    await receiver.close()


async def test_there_and_back(jobs_site: JobsSite, world: World) -> None:
    batch = await jobs_site.submit(chat_lines(4, "gpt"))
    await jobs_site.pool.execute(
        "UPDATE batches SET callback = jsonb_build_object('url', $2::text) WHERE id = $1",
        batch.id,
        world.callback_url,
    )

    async def arrived() -> bool:
        return bool(world.provider.batches)

    await eventually_async(arrived)
    held = world.provider.batch
    broken = next(iter(held.requests))
    world.provider.end(held, ends={broken: b'{"custom_id": "cut'})

    async def ended() -> dict[str, Any] | None:
        row = await jobs_site.batch(batch.id)
        return row if row["status"] == "completed" else None

    row = await eventually_async(ended, 20)
    assert row is not None
    lines = await jobs_site.file_lines(row["output_file"])
    assert {line["custom_id"] for line in lines} == {f"request-{n}" for n in range(4)}
    usage = await jobs_site.pool.fetch("SELECT cost_nano_usd, attempt_log FROM usage_records")
    assert sorted(record["cost_nano_usd"] for record in usage) == [
        *[ITEM_NANO_USD] * 3,
        2 * ITEM_NANO_USD,  # the one whose line was broken was called live
    ]
    assert row["cost_nano_usd"] == 5 * ITEM_NANO_USD

    async def told() -> bool:
        return bool(world.told)

    await eventually_async(told)
    headers, body = world.told[0]
    team_id, _ = await jobs_site.team()
    secret = await world.engine.gateway.callback_secrets.current(team_id)
    with OpenAI(api_key="any", webhook_secret=secret) as sdk:
        event = sdk.webhooks.unwrap(body, headers)
    assert event.type == "batch.completed"
    assert json.loads(body)["data"]["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    shown = generate_latest(world.engine.gateway.metrics.registry).decode()
    assert 'gw_batch_native_items_total{outcome="ok",provider="openai"} 3.0' in shown
    assert 'gw_batch_native_items_total{outcome="live",provider="openai"} 1.0' in shown
    assert 'gw_batch_callbacks_total{outcome="delivered"} 1.0' in shown
