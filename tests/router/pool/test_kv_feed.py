"""Feeds that hear a publisher over ZeroMQ: what is missed, and what is had again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sluice.backends.vllm import EventSource, NoEventSource, VLLMConfig, VLLMInspector
from sluice.router.pool import kv_feed
from sluice.router.pool.engine_caches import SESSION_HEADER, SETTLE_SECONDS
from sluice.router.pool.kv_feeds import KvFeeds
from tests.harness.polling import eventually_async
from tests.router.pool.kv_publisher import Publisher, SourceInspector, removed, stored
from tests.router.pool.live_fakes import DONE, Harness, piece

Scenes = Callable[..., Awaitable["Scene"]]


class Scene(Harness):
    """A pool of one replica, and its publisher."""

    def __init__(self, **publisher: Any) -> None:
        super().__init__("a", kv_events=True)
        self.publisher = Publisher(**publisher)
        self.inspector = SourceInspector(self.publisher)
        self.pool.roster["a"].inspector = self.inspector
        assert self.pool.caches is not None
        self.caches = self.pool.caches
        self.feeds = KvFeeds("p", self.pool.roster, self.caches, self.watcher)

    async def heard(self, blocks: int) -> None:
        """Until the replica is known to have so many blocks."""

        async def so_many() -> bool:
            return self.caches.resident("a") == blocks

        await eventually_async(so_many)

    async def connected(self) -> None:
        """Until the subscription is in force: what is published before then is not sent."""

        async def taken() -> bool:
            self.publisher.publish(stored([0]), removed([0]))
            return self.watcher.kv_events["removed"] > before

        before = self.watcher.kv_events["removed"]
        await eventually_async(taken)

    async def stop(self) -> None:
        await self.feeds.stop()
        await self.publisher.stop()
        await self.pool.close()


@pytest.fixture
async def scenes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scenes]:
    monkeypatch.setattr(kv_feed, "BEAT_SECONDS", 0.005)
    monkeypatch.setattr(kv_feed, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(kv_feed, "USELESS_SECONDS", 0.01)
    made: list[Scene] = []

    async def begin(**publisher: Any) -> Scene:
        scene = Scene(**publisher)
        made.append(scene)
        await scene.feeds.start()
        return scene

    yield begin
    for scene in made:
        await scene.stop()


async def test_what_was_stored_before_is_had_again(scenes: Scenes) -> None:
    scene = await scenes()
    scene.publisher.publish(stored([1, 2]), lose=True)
    scene.publisher.publish(removed([2]), lose=True)
    await scene.heard(1)
    await scene.connected()
    scene.publisher.publish(stored([3, 4], parent=1))
    await scene.heard(3)
    assert scene.watcher.kv_events["stored"] >= 4


async def test_a_gap_is_filled_by_asking_again(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene.publisher.publish(stored([1, 2, 3]))
    await scene.heard(3)
    scene.publisher.publish(removed([3]), lose=True)
    scene.publisher.publish(stored([4], parent=2))
    scene.publisher.publish(stored([5], parent=4))
    await scene.heard(4)
    assert scene.watcher.kv_gaps[-1] is True
    assert scene.caches._residents["a"].chain(5) == [1, 2, 4, 5]


@pytest.mark.parametrize("publisher", [{"replays": False}, {"kept": 1}], ids=["never", "no more"])
async def test_what_can_not_be_had_again_is_learnt_anew(
    scenes: Scenes, publisher: dict[str, Any]
) -> None:
    scene = await scenes(**publisher)
    await scene.connected()
    scene.publisher.publish(stored([1, 2, 3]))
    await scene.heard(3)
    scene.pool.scheduler.index.insert("a", [101])
    scene.publisher.publish(removed([3]), lose=True)
    scene.publisher.publish(stored([4, 5]))
    await scene.heard(2)
    assert scene.watcher.kv_gaps[-1] is False
    assert scene.pool.scheduler.index.match((101,)) == {"a": 1}  # as before, by its own belief


async def test_a_new_engine_is_heard_from_its_beginning(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene.publisher.publish(stored([1, 2, 3]))
    await scene.heard(3)
    old, scene.publisher = scene.publisher, Publisher()
    scene.publisher.publish(stored([7]))
    scene.inspector.publisher = scene.publisher
    await old.stop()
    await scene.heard(1)


async def test_an_engine_that_is_away_is_not_heard(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene.pool.scheduler.index.insert("a", [101])
    scene.publisher.publish(stored([1]))
    await scene.heard(1)
    scene.inspector.publisher = None
    await scene.publisher.stop()
    await scene.heard(0)
    assert scene.pool.scheduler.index.match((101,)) == {"a": 1}


async def test_what_can_not_be_read_is_given_up_until_it_can(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene.publisher.publish(stored([1]))
    await scene.heard(1)
    scene.publisher.send(b"what is this?")

    async def asked_anew() -> bool:
        return scene.publisher.asked.count(0) > 1

    await eventually_async(asked_anew)
    scene.inspector.error = NoEventSource("gone")
    await scene.heard(0)


async def test_who_leaves_is_heard_no_more(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene.publisher.publish(stored([1]))
    await scene.heard(1)
    await scene.pool.leave(scene.pool.roster["a"])
    await scene.heard(0)


USAGE = {"prompt_tokens": 384, "completion_tokens": 2, "prompt_tokens_details": None}


async def test_a_request_of_the_pool_makes_its_prompt_known(scenes: Scenes) -> None:
    scene = await scenes()
    await scene.connected()
    scene["a"].pieces = [piece(usage=USAGE), DONE]
    await scene.ask("long " * 310)
    session = scene["a"].requests[0].headers[SESSION_HEADER]
    scene.publisher.publish(stored([1, 2, 3], session=session))
    await scene.heard(3)
    scene.clock.now += SETTLE_SECONDS
    scene.pool.tick(scene.clock.now)
    assert scene.pool.scheduler.index.size("a") == 3
    scene.publisher.publish(removed([3]))
    scene.publisher.publish(removed([2]))
    await scene.heard(1)
    assert scene.pool.scheduler.index.size("a") == 1


async def test_a_pool_that_does_not_listen_names_no_sessions() -> None:
    pool = Harness("a")
    await pool.ask()
    assert SESSION_HEADER not in pool["a"].requests[0].headers
    assert pool.pool.caches is None


class Engine:
    """Answers one path."""

    def __init__(self) -> None:
        self.body: object = {}

    async def answer(self, request: web.Request) -> web.Response:
        return web.json_response(self.body)


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, VLLMInspector]]:
    made, application = Engine(), web.Application()
    application.router.add_get("/kv_event_sources", made.answer)
    async with TestServer(application) as server:
        inspector = VLLMInspector(VLLMConfig(f"http://127.0.0.1:{server.port}"))
        yield made, inspector
        await inspector.close()


def publisher(**changed: Any) -> dict[str, Any]:
    """One, as vLLM 0.32 describes it."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://10.1.2.3:5558",
        "buffer_steps": 10000,
        "topic": "kv",
        **changed,
    }


async def test_events_are_at_the_replicas_own_host(engine: tuple[Engine, VLLMInspector]) -> None:
    said, inspector = engine
    said.body = {"0": publisher()}
    found = await inspector.event_source(5.0)
    assert found == EventSource("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "kv")
    said.body = {"0": publisher(replay_endpoint=None)}
    found = await inspector.event_source(5.0)
    assert found is not None
    assert found.replay is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"detail": "Not Found"},
        [],
        {"0": publisher(), "1": publisher()},
        {"0": publisher(endpoint="ipc:///tmp/events")},
        {"0": publisher(endpoint="tcp://*:all")},
    ],
)
async def test_what_can_not_be_heard_is_said(
    engine: tuple[Engine, VLLMInspector], body: object
) -> None:
    said, inspector = engine
    said.body = body
    with pytest.raises(NoEventSource):
        await inspector.event_source(5.0)


async def test_who_can_not_be_asked_is_asked_again() -> None:
    inspector = VLLMInspector(VLLMConfig("http://127.0.0.1:1"))
    assert await inspector.event_source(5.0) is None
    await inspector.close()
