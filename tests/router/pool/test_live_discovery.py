"""Replicas that announce themselves, in a real Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import pytest
import redis.asyncio
from redis.exceptions import RedisError

from sluice.backends.replicas import LEASE_SECONDS, Announcement, Replicas
from sluice.router.pool.discovery import Discovery
from sluice.router.pool.membership import Event
from tests.harness.polling import eventually_async
from tests.router.pool.live_fakes import FakeInspector, FakeReplica, Harness
from tests.servers import RunningServer


class Scene(Harness):
    """A pool whose replica `w` has a worker."""

    def __init__(self, url: str) -> None:
        super().__init__("s", discover=True)
        self.replicas["w"] = FakeReplica()
        self.inspectors["w"] = FakeInspector(self.replicas["w"])
        self.client = redis.asyncio.Redis.from_url(url)
        self.announced = Replicas(self.client.execute_command, lease_seconds=0.2)
        self.discovery = Discovery(self.pool, self.client)
        self.discovery._announced = self.announced

    async def beat(self, state: Literal["joining", "ready", "draining"] = "ready") -> None:
        await self.announced.beat(
            Announcement(
                id="w",
                pool="p",
                url="http://w",
                model="m",
                version="1",
                stage="prod",
                state=state,
                since=0.0,
            )
        )

    async def poll(self) -> None:
        self.clock.now += LEASE_SECONDS + 1
        await self.discovery.poll()


@pytest.fixture
async def scene(valkey: RunningServer) -> AsyncIterator[Scene]:
    made = Scene(valkey.url)
    await made.client.delete("sluice:pool:p:replicas", "sluice:pool:p:drained")
    yield made
    await made.client.aclose()


async def test_who_announces_itself_joins_and_is_proven(scene: Scene) -> None:
    await scene.beat()
    await scene.poll()
    assert scene.states() == {"s": "ready", "w": "joining"}
    scene.report("w", Event.PROBE_OK)
    assert scene.states()["w"] == "ready"


async def test_who_falls_silent_takes_no_requests(scene: Scene) -> None:
    await scene.beat()
    await scene.poll()
    scene.report("w", Event.PROBE_OK)

    async def out() -> bool:
        await scene.poll()
        return scene.states()["w"] == "ejected"

    await eventually_async(out)


async def test_who_is_silent_for_long_is_forgotten(scene: Scene) -> None:
    await scene.beat()
    await scene.poll()

    async def gone() -> bool:
        scene.clock.now += 100
        await scene.poll()
        return "w" not in scene.pool.roster

    await eventually_async(gone)
    assert scene.watcher.left == ["w"]


async def test_a_worker_drains_and_restarts_its_engine(scene: Scene) -> None:
    await scene.beat()
    await scene.poll()
    scene.report("w", Event.PROBE_OK)
    await scene.beat("joining")
    await scene.poll()
    assert scene.states()["w"] == "ejected"
    await scene.beat("draining")
    await scene.poll()
    assert scene.states()["w"] == "draining"


async def test_silence_after_redis_was_away_means_nothing_yet(scene: Scene) -> None:
    await scene.beat()
    await scene.poll()
    scene.report("w", Event.PROBE_OK)
    good, bad = scene.discovery._announced, Replicas(_away)
    scene.discovery._announced = bad
    await scene.poll()
    assert scene.states()["w"] == "ready"
    scene.discovery._announced = good
    await scene.client.delete("sluice:pool:p:replicas")
    await scene.discovery.poll()
    assert scene.states()["w"] == "ready"
    await scene.poll()
    assert scene.states()["w"] == "ejected"


async def test_every_gateway_knows_what_is_drained(scene: Scene, valkey: RunningServer) -> None:
    other = Scene(valkey.url)
    await other.poll()
    await scene.discovery.drain("s", True)
    await other.poll()
    assert scene.states()["s"] == other.states()["s"] == "draining"
    await scene.discovery.drain("s", False)
    await other.poll()
    assert scene.states()["s"] == other.states()["s"] == "joining"
    await other.client.aclose()


async def _away(*command: object) -> object:
    raise RedisError("away")
