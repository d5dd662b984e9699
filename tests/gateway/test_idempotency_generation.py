"""The generation: what a pipeline does becomes a tape, over a real Valkey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from sluice.backends.base import Endpoint
from sluice.billing.redis_link import RedisLink
from sluice.gateway.exchange import HEARTBEAT, Exchange
from sluice.gateway.idempotency.generation import Asked, Generation, Terms
from sluice.gateway.idempotency.reel import WINDOW_BYTES, Reel
from sluice.gateway.idempotency.scripts import BYTES, PREFIX, TAPE
from sluice.gateway.idempotency.tapes import Claim, Tapes, View
from sluice.gateway.idempotency.watch import Watch
from sluice.gateway.meter import Meter
from sluice.gateway.output_rates import OutputRates
from sluice.wire.usage import Usage
from tests.servers import RunningServer

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"x/y")]}
CLAIM = Claim("name", "print", "owner")


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


@pytest.fixture
async def link(valkey: RunningServer) -> AsyncIterator[RedisLink]:
    made = RedisLink(valkey.url)
    await made.connect()
    async with Redis.from_url(valkey.url) as client:
        async for name in client.scan_iter(f"{PREFIX}*"):
            await client.delete(name)
    yield made
    made.drop()


@pytest.fixture
async def tapes(link: RedisLink) -> Tapes:
    made = Tapes(link, 30, 600)
    await made.claim(CLAIM)
    return made


def generation(tapes: Tapes, terms: Terms | None = None, **more: Any) -> Generation:
    asked = Asked(Endpoint.CHAT, [(b"x", b"y")], b"{}", time.time_ns() // 1000, time.monotonic())
    meter = Meter({}, "gateway", OutputRates())
    return Generation(CLAIM, asked, tapes, meter, terms or Terms(lease_seconds=0.2), **more)


async def heard(reel: Reel) -> bytes:
    out = b""
    with reel.listen() as listener:
        while piece := await listener.next():
            out += piece
    return out


async def seen(tapes: Tapes) -> View:
    view = await tapes.view("owner", 0, listening=False)
    assert view is not None
    return view


async def test_a_whole_answer_finishes_the_key(tapes: Tapes) -> None:
    made = generation(tapes)

    async def serve(exchange: Exchange) -> None:
        assert (exchange.id, exchange.method, exchange.headers) == ("owner", "POST", [(b"x", b"y")])
        assert (await exchange.receive())["body"] == b"{}"
        await exchange.send(START)
        await exchange.send(part(b"one "))
        await exchange.send(part(HEARTBEAT))
        await exchange.send(part(b"two "))
        exchange.ended("ok", Usage())
        await exchange.send(part(b"three", more=False))

    listening = asyncio.create_task(heard(made.reel))
    await asyncio.sleep(0)
    await made.run(serve)
    assert await listening == b"one two three"
    view = await seen(tapes)
    assert (view.state, view.part, made.reel.end) == ("done", b"one two three", "done")
    assert (await tapes.claim(Claim("name", "print", "second"))).finding == "done"


async def test_the_end_is_not_heard_before_the_pipeline_sends_it(tapes: Tapes) -> None:
    made = generation(tapes)
    settled = asyncio.Event()

    async def serve(exchange: Exchange) -> None:
        await exchange.send(START)
        await exchange.send(part(b"words"))
        exchange.ended("ok", Usage())
        await settled.wait()
        await exchange.send(part(b"[DONE]", more=False))

    running = asyncio.create_task(made.run(serve))
    with made.reel.listen() as listener:
        assert await listener.next() == b"words"
        assert (await tapes.claim(Claim("name", "print", "second"))).finding == "running"
        assert (await seen(tapes)).part == b"words"
        settled.set()
        assert (await listener.next(), made.reel.end) == (b"[DONE]", "done")
    await running


@pytest.mark.parametrize(
    ("outcome", "status"), [("upstream_error", 200), ("internal_error", 200), ("ok", 500)]
)
async def test_whatever_did_not_end_well_frees_the_key(
    tapes: Tapes, outcome: Any, status: int
) -> None:
    made = generation(tapes)

    async def serve(exchange: Exchange) -> None:
        await exchange.send({**START, "status": status})
        exchange.ended(outcome, Usage())
        await exchange.send(part(b"error", more=False))

    await made.run(serve)
    assert (made.reel.end, (await seen(tapes)).state) == ("failed", "failed")
    assert (await tapes.claim(Claim("name", "other", "second"))).finding == "claimed"


@pytest.mark.parametrize("begun", [True, False])
async def test_a_pipeline_that_stops_without_an_end_leaves_none(tapes: Tapes, begun: bool) -> None:
    made = generation(tapes)

    async def serve(exchange: Exchange) -> None:
        exchange.ended("ok", Usage())
        if begun:
            await exchange.send(START)
            await exchange.send(part(b"half"))

    await made.run(serve)
    view = await seen(tapes)
    assert (made.reel.end, view.state) == ("lost", "lost")
    assert view.part == (b"half" if begun else b"")
    assert (await tapes.claim(Claim("name", "print", "second"))).finding == "claimed"


async def test_a_fault_of_the_pipeline_is_no_answer_either(tapes: Tapes) -> None:
    made = generation(tapes)

    async def serve(exchange: Exchange) -> None:
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError):
        await made.run(serve)
    assert made.reel.end == "lost"


async def test_it_hears_of_a_client_that_left_when_nobody_has_listened_for_long(
    tapes: Tapes,
) -> None:
    made = generation(tapes, Terms(grace_seconds=0.3, lease_seconds=1))
    left = 0.0

    async def serve(exchange: Exchange) -> None:
        await exchange.receive()
        assert (await exchange.receive())["type"] == "http.disconnect"
        assert time.monotonic() - left >= 0.3

    running = asyncio.create_task(made.run(serve))
    with made.reel.listen():
        await asyncio.sleep(0)
        assert not running.done()
    left = time.monotonic()
    await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("lost_by", ["write", "look", "confirm"])
async def test_who_lost_the_key_finds_out_and_charges_nothing(
    tapes: Tapes, link: RedisLink, lost_by: str
) -> None:
    made = generation(tapes, Terms(lease_seconds=0.2))
    charged: list[bool] = []

    async def serve(exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.send(START)
        await exchange.send(part(b"half"))
        await link.send("DEL", PREFIX + "name")
        if lost_by == "write":
            await exchange.send(part(b"more"))
        if lost_by != "confirm":
            assert (await exchange.receive())["type"] == "http.disconnect"
        exchange.ended("ok", Usage())
        assert exchange.confirm is not None
        await exchange.confirm()
        charged.append(exchange.charged)
        assert (exchange.outcome, exchange.error_code) == ("internal_error", "gateway_lost")
        await exchange.send(part(b"[DONE]", more=False))

    listening = asyncio.create_task(heard(made.reel))
    await asyncio.wait_for(made.run(serve), 5)
    assert b"[DONE]" not in await listening
    assert (made.reel.end, charged) == ("lost", [True])


async def test_much_at_once_is_put_down_before_more_is_taken(tapes: Tapes) -> None:
    made = generation(tapes)
    sent = 0

    async def serve(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(START)
        for _ in range(40):
            await exchange.send(part(b"x" * 50_000))
            sent += 50_000
            assert sent - made.reel.length <= WINDOW_BYTES + 50_000
        exchange.ended("ok", Usage())
        await exchange.send(part(b"", more=False))

    listening = asyncio.create_task(heard(made.reel))
    await made.run(serve)
    assert len(await listening) == 2_000_000


async def test_what_outgrows_its_tape_is_heard_here_and_known_elsewhere(
    tapes: Tapes, link: RedisLink
) -> None:
    made = generation(tapes, Terms(max_bytes=1000))

    async def serve(exchange: Exchange) -> None:
        await exchange.send(START)
        for letter in (b"a", b"b", b"c"):
            await exchange.send(part(letter * 600))
            await asyncio.sleep(0.01)
        exchange.ended("ok", Usage())
        await exchange.send(part(b"end", more=False))

    watch = Watch("owner", tapes, 1)
    elsewhere = asyncio.create_task(heard(watch.reel))
    here = asyncio.create_task(heard(made.reel))
    await asyncio.sleep(0)
    watching = asyncio.create_task(watch.run())
    await made.run(serve)
    assert await here == b"a" * 600 + b"b" * 600 + b"c" * 600 + b"end"
    assert (made.reel.end, await elsewhere) == ("done", b"a" * 600)
    await watching
    assert watch.reel.end == "large"
    assert await link.send("STRLEN", BYTES + "owner") == 600


class TestWatch:
    """Another gateway's view of the same."""

    async def watched(self, tapes: Tapes, serve: Callable[[Exchange], Any]) -> tuple[bytes, Reel]:
        watch = Watch("owner", tapes, 1)
        elsewhere = asyncio.create_task(heard(watch.reel))
        await asyncio.sleep(0)
        watching = asyncio.create_task(watch.run())
        await generation(tapes).run(serve)
        text = await elsewhere
        await watching
        return text, watch.reel

    async def test_it_sees_all_that_is_sent(self, tapes: Tapes) -> None:
        async def serve(exchange: Exchange) -> None:
            await exchange.send(START)
            for number in range(50):
                await exchange.send(part(b"%04d" % number * 5000))
            exchange.ended("ok", Usage())
            await exchange.send(part(b"end", more=False))

        text, reel = await self.watched(tapes, serve)
        assert text == b"".join(b"%04d" % number * 5000 for number in range(50)) + b"end"
        assert reel.end == "done"

    async def test_it_sees_the_failure(self, tapes: Tapes) -> None:
        async def serve(exchange: Exchange) -> None:
            await exchange.send({**START, "status": 500})
            await exchange.send(part(b"error", more=False))

        text, reel = await self.watched(tapes, serve)
        assert (text, reel.end) == (b"error", "failed")
        assert reel.head is not None
        assert reel.head.status == 500

    async def test_a_tape_that_is_gone_is_lost(self, tapes: Tapes, link: RedisLink) -> None:
        watch = Watch("owner", tapes, 1)
        with watch.reel.listen():
            watching = asyncio.create_task(watch.run())
            await link.send("DEL", TAPE + "owner")
            await asyncio.wait_for(watching, 5)
        assert watch.reel.end == "lost"

    async def test_redis_may_be_away_for_a_while_only(self, tapes: Tapes, link: RedisLink) -> None:
        watch = Watch("owner", tapes, 0.1)
        with watch.reel.listen():
            link.drop()
            await asyncio.wait_for(watch.run(), 5)
        assert watch.reel.end == "lost"

    async def test_it_ends_with_its_last_listener(self, tapes: Tapes) -> None:
        watch = Watch("owner", tapes, 1)
        with watch.reel.listen():
            watching = asyncio.create_task(watch.run())
            await asyncio.sleep(0)
        await asyncio.wait_for(watching, 5)
        assert watch.reel.end is None
