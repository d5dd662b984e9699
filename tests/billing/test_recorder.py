"""The recorder before a real Valkey that comes and goes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.billing.events import FIELD, STREAM, UsageEvent, decode_events
from sluice.billing.recorder import Recorder, RecorderConfig, UsageNotDurable
from sluice.billing.redis_link import RedisLink
from sluice.billing.spool import SUFFIX
from tests.billing.samples import client, usage_event
from tests.billing.test_spool import file_limit
from tests.harness.polling import eventually_async
from tests.servers import RunningServer

NewServer = Callable[[], RunningServer]


class Observer:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, int]] = []
        self.size = -1
        self.waiting = -1

    def committed(self, path: str, events: int, seconds: float) -> None:
        assert seconds >= 0
        self.commits.append((path, events))

    def spooled_bytes(self, size: int) -> None:
        self.size = size

    def waiting_entries(self, count: int) -> None:
        self.waiting = count

    def events(self, path: str) -> int:
        return sum(events for by, events in self.commits if by == path)


@asynccontextmanager
async def recording(
    url: str, spool: Path, observer: Observer | None = None, timeout: float = 0.5
) -> AsyncIterator[Recorder]:
    """A recorder at work, stopped in the end."""
    config = RecorderConfig(spool, stream_timeout=timeout, retry_seconds=0.05)
    recorder = Recorder(RedisLink(url), config, observer or Observer())
    await recorder.start()
    yield recorder
    await recorder.stop()


async def test_the_ledgers_lag_is_told(own_valkey: RunningServer, tmp_path: Path) -> None:
    observer = Observer()
    async with recording(own_valkey.url, tmp_path, observer) as recorder:
        await recorder.submit(usage_event())
        await recorder.submit(usage_event())

        async def told() -> bool:
            return observer.waiting == 2

        await eventually_async(told)


async def streamed(redis: Redis) -> list[UsageEvent]:
    """The events in the stream, duplicates included."""
    entries: Any = await redis.xrange(STREAM)
    return [event for _, fields in entries for event in decode_events(fields[FIELD])]


async def streamed_ids(url: str) -> list[str]:
    """Ids in the stream; none while it is away."""
    try:
        async with client(url) as redis:
            return [event.request_id for event in await streamed(redis)]
    except (RedisError, OSError):
        return []


async def test_an_event_is_in_the_stream_when_its_future_ends(
    redis: Redis, own_valkey: RunningServer, tmp_path: Path
) -> None:
    event = usage_event(model="\x00é😀")
    async with recording(own_valkey.url, tmp_path) as recorder:
        await recorder.submit(event)
        assert await streamed(redis) == [event]
    assert not list(tmp_path.iterdir())


async def test_many_events_share_few_writes(
    redis: Redis, own_valkey: RunningServer, tmp_path: Path
) -> None:
    await redis.config_resetstat()
    events = [usage_event() for _ in range(500)]
    observer = Observer()

    async def one(recorder: Recorder, event: UsageEvent) -> None:
        await asyncio.sleep(0)
        await recorder.submit(event)

    async with recording(own_valkey.url, tmp_path, observer) as recorder:
        await asyncio.gather(*(one(recorder, event) for event in events))
    stats = await redis.info("commandstats")
    assert stats["cmdstat_xadd"]["calls"] <= 5
    assert await streamed(redis) == events
    assert observer.events("stream") == 500


async def test_an_event_that_comes_during_a_write_goes_with_the_next(
    redis: Redis, own_valkey: RunningServer, tmp_path: Path
) -> None:
    async with recording(own_valkey.url, tmp_path) as recorder:
        first = recorder.submit(usage_event())
        await asyncio.sleep(0)  # the write of the first is on its way
        await asyncio.sleep(0)
        second = recorder.submit(usage_event())
        assert second is not first
        await asyncio.gather(first, second)
    assert len(await streamed(redis)) == 2


async def test_cancelled_waiters_lose_no_event(
    redis: Redis, own_valkey: RunningServer, tmp_path: Path
) -> None:
    event = usage_event()
    async with recording(own_valkey.url, tmp_path) as recorder:
        waiting = asyncio.ensure_future(asyncio.shield(recorder.submit(event)))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await streamed(redis) == [event]


async def test_stop_commits_what_is_pending(
    redis: Redis, own_valkey: RunningServer, tmp_path: Path
) -> None:
    async with recording(own_valkey.url, tmp_path) as recorder:
        futures = [recorder.submit(usage_event()) for _ in range(20)]
    assert all(future.done() and future.exception() is None for future in futures)
    assert len(await streamed(redis)) == 20


async def test_events_survive_an_outage_of_the_stream(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server, observer = valkey_server(), Observer()
    events = [usage_event() for _ in range(30)]
    async with recording(server.url, tmp_path, observer) as recorder:
        for event in events[:10]:
            await recorder.submit(event)
        server.stop()
        for event in events[10:20]:
            await recorder.submit(event)
        assert observer.events("spool") == 10
        assert recorder.stream_away
        server.start()
        await eventually_async(lambda: _all_there(server.url, events[:20]))
        await eventually_async(lambda: _nothing_in(tmp_path))
        for event in events[20:]:
            await recorder.submit(event)
        assert set(await streamed_ids(server.url)) == {event.request_id for event in events}


async def _all_there(url: str, events: list[UsageEvent]) -> bool:
    return {event.request_id for event in events} <= set(await streamed_ids(url))


async def _nothing_in(directory: Path) -> bool:
    return not list(directory.iterdir())


async def test_a_killed_stream_loses_nothing_that_was_spooled(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server = valkey_server()
    server.kill()
    event = usage_event()
    async with recording(server.url, tmp_path) as recorder:
        await recorder.submit(event)
    assert len(list(tmp_path.glob("*" + SUFFIX))) == 1
    server.start()
    async with recording(server.url, tmp_path):  # the next process
        await eventually_async(lambda: _all_there(server.url, [event]))


async def test_a_write_that_times_out_may_come_twice_but_comes(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server, observer = valkey_server(), Observer()
    events = [usage_event(), usage_event()]
    async with recording(server.url, tmp_path, observer, timeout=0.2) as recorder:
        await recorder.submit(events[0])
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await recorder.submit(events[1])
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert observer.commits == [("stream", 1), ("spool", 1)]
        await eventually_async(lambda: _nothing_in(tmp_path))
        await recorder.submit(usage_event())  # the connection is usable again
    ids = await streamed_ids(server.url)
    assert {event.request_id for event in events} <= set(ids)
    assert ids.count(events[0].request_id) == 1


async def test_a_stream_that_refuses_writes_is_as_good_as_away(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server, event = valkey_server(), usage_event()
    async with client(server.url) as redis, recording(server.url, tmp_path) as recorder:
        await redis.set(STREAM, "not a stream")
        await recorder.submit(event)
        assert list(tmp_path.glob("*" + SUFFIX))
        await redis.delete(STREAM)
        await eventually_async(lambda: _all_there(server.url, [event]))


async def test_without_stream_and_spool_the_answer_is_told(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server = valkey_server()
    server.stop()
    (tmp_path / "file").write_text("")
    async with recording(server.url, tmp_path / "file") as recorder:
        with pytest.raises(UsageNotDurable):
            await recorder.submit(usage_event())
        server.start()
        await eventually_async(lambda: _recovers(recorder))


async def _recovers(recorder: Recorder) -> bool:
    try:
        await recorder.submit(usage_event())
    except UsageNotDurable:
        return False
    return True


async def test_a_full_disk_is_told_and_spoils_nothing_afterwards(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server = valkey_server()
    server.stop()
    first, lost, last = usage_event(), usage_event(), usage_event()
    async with recording(server.url, tmp_path) as recorder:
        await recorder.submit(first)
        size = next(tmp_path.glob("*" + SUFFIX)).stat().st_size
        with file_limit(size + 10), pytest.raises(UsageNotDurable):
            await recorder.submit(lost)
        await recorder.submit(last)
        server.start()
        await eventually_async(lambda: _all_there(server.url, [first, last]))
        assert lost.request_id not in await streamed_ids(server.url)


async def test_what_is_written_during_a_replay_is_replayed_too(
    valkey_server: NewServer, tmp_path: Path
) -> None:
    server = valkey_server()
    events = [usage_event() for _ in range(60)]
    async with recording(server.url, tmp_path) as recorder:
        for number, event in enumerate(events):
            if number % 20 == 5:
                server.stop()
            if number % 20 == 15:
                server.start()
            await recorder.submit(event)
        await eventually_async(lambda: _all_there(server.url, events))
        await eventually_async(lambda: _nothing_in(tmp_path))
