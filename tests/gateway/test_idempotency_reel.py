"""The reel: windows of bytes, and listeners of every pace."""

from __future__ import annotations

import asyncio

import pytest

from sluice.gateway.idempotency.reel import PIECE_BYTES, WINDOW_BYTES, Reel, TornTape
from sluice.gateway.idempotency.tapes import Head

HEAD = Head(200, [("content-type", "text/event-stream")])


class Tape:
    """A tape in memory, with the reel over it."""

    def __init__(self) -> None:
        self.text = b""
        self.reads = 0
        self.reel = Reel(self._read)

    async def _read(self, offset: int) -> bytes:
        self.reads += 1
        return self.text[offset : offset + PIECE_BYTES]

    def put(self, part: bytes) -> None:
        self.text += part
        self.reel.advance(part, HEAD)


async def test_listeners_get_what_comes_when_it_comes() -> None:
    tape = Tape()
    with tape.reel.listen() as listener:
        waiting = asyncio.create_task(listener.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        tape.put(b"one ")
        assert await waiting == b"one "
        tape.put(b"two ")
        tape.put(b"three")
        assert await listener.next() == b"two three"
        tape.reel.advance(b"", HEAD, "done")
        assert await listener.next() == b""
    assert tape.reads == 0


async def test_nothing_is_heard_before_the_head() -> None:
    reel = Tape().reel
    with reel.listen():
        begun = asyncio.create_task(reel.beyond(-1))
        await asyncio.sleep(0)
        assert not begun.done()
        reel.advance(b"", HEAD)
        await begun


async def test_the_end_comes_with_the_last_bytes() -> None:
    reel = Tape().reel
    with reel.listen() as listener:
        reel.advance(b"all", HEAD, "done")
        assert (await listener.next(), reel.end) == (b"all", "done")


async def test_who_is_behind_the_window_reads_the_tape() -> None:
    tape = Tape()
    with tape.reel.listen() as late, tape.reel.listen() as quick:
        heard = b""
        for number in range(64):
            tape.put(b"%08d" % number * 2048)
            heard += await quick.next()
        tape.reel.advance(b"", HEAD, "done")
        assert tape.reads == 0
        caught_up = b""
        while part := await late.next():
            caught_up += part
    assert caught_up == heard == tape.text
    assert 0 < tape.reads < 20
    assert tape.reel.piece(0) is None


async def test_the_window_is_all_that_is_held() -> None:
    tape = Tape()
    for _ in range(40):
        tape.put(b"x" * 50_000)
    assert len(tape.reel._window) == WINDOW_BYTES


class TestOutgrown:
    """What is on no tape waits for those who are here, for a while."""

    async def test_nobody_loses_anything_who_goes_on_reading(self) -> None:
        reel = Tape().reel
        sent = b""
        heard = bytearray()

        async def read() -> None:
            with reel.listen() as listener:
                while part := await listener.next():
                    heard.extend(part)
                    await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        for number in range(100):
            part = b"%08d" % number * 4096
            sent += part
            reel.advance(part, HEAD, stored=False)
            await reel.room(5)
            assert len(reel._window) <= WINDOW_BYTES + len(part)
        reel.advance(b"", HEAD, "done", stored=False)
        await reading
        assert bytes(heard) == sent

    async def test_who_holds_everybody_up_loses_the_rest(self) -> None:
        reel = Tape().reel
        with reel.listen() as stalled, reel.listen() as quick:
            for _ in range(10):
                reel.advance(b"x" * 50_000, HEAD, stored=False)
                while quick.offset < reel.length:
                    await quick.next()
                await reel.room(0.01)
            assert quick.offset == 500_000
            with pytest.raises(TornTape):
                await stalled.next()

    async def test_without_listeners_nothing_is_held(self) -> None:
        reel = Tape().reel
        for _ in range(20):
            reel.advance(b"x" * 50_000, HEAD, stored=False)
            await reel.room(5)
        assert len(reel._window) <= WINDOW_BYTES

    async def test_the_part_before_is_still_on_the_tape(self) -> None:
        tape = Tape()
        tape.put(b"a" * WINDOW_BYTES * 2)
        with tape.reel.listen() as listener:
            tape.reel.advance(b"b" * 1000, HEAD, "done", stored=False)
            heard = b""
            while part := await listener.next():
                heard += part
        assert heard == b"a" * WINDOW_BYTES * 2 + b"b" * 1000


def test_silence_begins_when_the_last_one_leaves() -> None:
    times = iter((10.0, 25.0))
    reel = Reel(Tape()._read, lambda: next(times))
    assert _silence(reel) == (False, 10.0)
    with reel.listen():
        with reel.listen():
            assert _silence(reel) == (True, 10.0)
        assert _silence(reel) == (True, 10.0)
    assert _silence(reel) == (False, 25.0)


def _silence(reel: Reel) -> tuple[bool, float]:
    return reel.heard, reel.silent_since


async def test_a_listener_that_is_cancelled_leaves() -> None:
    tape = Tape()

    async def listen() -> None:
        with tape.reel.listen() as listener:
            await listener.next()

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    assert _silence(tape.reel)[0]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not _silence(tape.reel)[0]
    tape.put(b"later")
