"""Lifelines: what interrupts a request, what does not, and which of it was whose."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.exchange import Exchange
from sluice.gateway.lifeline import WATCH_AFTER_SECONDS, Cut, Lifeline, Lifelines
from tests.harness.polling import eventually_async


def nothing() -> None:
    pass


class Request:
    """A task that waits with a lifeline until it is interrupted."""

    def __init__(self, prepare: Callable[[Lifeline], None] = lambda line: None) -> None:
        self.ready = asyncio.Event()
        self.go_on = asyncio.Event()
        self.mine: bool | None = None
        self.line: Lifeline | None = None
        self._prepare = prepare
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        self.line = Lifeline(nothing)
        self._prepare(self.line)
        self.ready.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.mine = self.line.caught()
            if not self.mine:
                raise
            await asyncio.sleep(0)  # the task goes on as if nothing had been
            return "cut"
        return "complete"

    async def until_ready(self) -> Lifeline:
        await self.ready.wait()
        assert self.line is not None
        return self.line


@pytest.mark.parametrize("why", list(Cut))
async def test_a_cut_interrupts_once_and_is_known(why: Cut) -> None:
    request = Request()
    line = await request.until_ready()
    line.cut(why)
    line.cut(Cut.SHUTDOWN)
    assert await request.task == "cut"
    assert line.cut_by is why
    assert request.task.cancelling() == 0


async def test_somebody_elses_cancellation_is_not_the_lifelines() -> None:
    request = Request()
    line = await request.until_ready()
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task
    assert request.mine is False
    assert line.cut_by is None


async def test_a_cancellation_on_top_of_a_cut_is_not_swallowed() -> None:
    request = Request()
    line = await request.until_ready()
    line.cut(Cut.CLIENT_GONE)
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task
    assert request.mine is False


async def test_a_released_request_is_left_alone() -> None:
    request = Request(lambda line: line.release())
    line = await request.until_ready()
    line.cut(Cut.SHUTDOWN)
    request.go_on.set()
    assert await request.task == "complete"
    assert line.cut_by is None


def receiving(message: Any, after: asyncio.Event | None = None) -> Callable[[], Any]:
    async def receive() -> Any:
        if after is not None:
            await after.wait()
        if isinstance(message, Exception):
            raise message
        return message

    return receive


async def test_a_client_that_leaves_cuts() -> None:
    request = Request(lambda line: line.watch_client(receiving({"type": "http.disconnect"})))
    assert await request.task == "cut"
    assert request.line is not None
    assert request.line.cut_by is Cut.CLIENT_GONE


@pytest.mark.parametrize("message", [{"type": "http.request", "body": b"x"}, OSError("gone")])
async def test_other_messages_and_faults_do_not(message: Any) -> None:
    request = Request(lambda line: line.watch_client(receiving(message)))
    line = await request.until_ready()
    for _ in range(5):
        await asyncio.sleep(0)
    request.go_on.set()
    assert await request.task == "complete"
    assert line.cut_by is None


async def test_after_the_release_a_client_may_leave() -> None:
    left = asyncio.Event()
    request = Request(lambda line: line.watch_client(receiving({"type": "http.disconnect"}, left)))
    line = await request.until_ready()
    line.release()
    left.set()
    for _ in range(5):
        await asyncio.sleep(0)
    request.go_on.set()
    assert await request.task == "complete"
    assert line.cut_by is None


class TestDeadlines:
    @pytest.mark.parametrize(
        ("total", "piece", "why"),
        [
            (10.0, None, Cut.TOTAL),
            (None, 10.0, Cut.BETWEEN_TOKENS),
            (10.0, 10.0, Cut.TOTAL),
            (20.0, 10.0, Cut.BETWEEN_TOKENS),
        ],
    )
    async def test_a_passed_deadline_cuts(
        self, total: float | None, piece: float | None, why: Cut
    ) -> None:
        request = Request()
        line = await request.until_ready()
        line.total_at, line.next_piece_by = total, piece
        causes: list[Cut | None] = []
        for now in (10.0, 10.001):
            line.sweep(now, 1)
            causes.append(line.cut_by)
        assert causes == [None, why]
        assert await request.task == "cut"

    async def test_silence_is_broken_at_the_pace_of_the_heartbeat(self) -> None:
        beats: list[int] = []
        line = Lifeline(lambda: beats.append(1))
        line.sweep(100, 5)
        line.silent_since = 0.0
        for now in range(1, 17):
            line.sweep(float(now), 5)
        assert len(beats) == 2

    async def test_a_cut_request_has_no_heartbeat(self) -> None:
        beats: list[int] = []
        request = Request()
        line = await request.until_ready()
        line._heartbeat = lambda: beats.append(1)
        line.silent_since = 0.0
        line.cut(Cut.SHUTDOWN)
        line.sweep(100, 5)
        assert await request.task == "cut"
        assert beats == []


def test_a_lifeline_is_made_in_its_own_task() -> None:
    with pytest.raises(RuntimeError):
        Lifeline(nothing)


class TestAll:
    async def test_one_sweep_watches_all(self) -> None:
        lags: list[float] = []
        lines = Lifelines(15, lags.append)
        requests = [Request() for _ in range(5)]
        for request in requests:
            line = await request.until_ready()
            line.total_at = 0.0
            lines.add(line)
        await lines.start()
        try:
            assert await asyncio.gather(*(request.task for request in requests)) == ["cut"] * 5

            async def observed() -> bool:
                return len(lags) > 1

            await eventually_async(observed)
            assert min(lags) >= 0
        finally:
            await lines.stop()

    async def test_all_are_cut_at_once_and_those_that_ended_are_forgotten(self) -> None:
        lines = Lifelines(15, lambda lag: None)
        ended, going = Request(), Request()
        lines.add(await ended.until_ready())
        lines.add(await going.until_ready())
        lines.remove(await ended.until_ready())
        lines.remove(await ended.until_ready())
        assert len(lines) == 1
        lines.cut_all(Cut.SHUTDOWN)
        ended.go_on.set()
        assert await ended.task == "complete"
        assert await going.task == "cut"

    async def test_stopping_what_never_started_is_fine(self) -> None:
        await Lifelines(15, lambda lag: None).stop()


@pytest.mark.parametrize("watched", [True, False])
async def test_a_request_that_is_over_leaves_nothing_to_the_collector_of_cycles(
    watched: bool,
) -> None:
    async def nothing_comes() -> Any:
        await asyncio.Event().wait()

    lines = Lifelines(1.0, lambda lag: None)
    scope = {"headers": [], "method": "POST"}
    exchange = Exchange(Endpoint.CHAT, scope, nothing_comes, AsyncMock())
    lines.add(exchange.lifeline)
    exchange.lifeline.watch_client(nothing_comes)
    if watched:
        await asyncio.sleep(2 * WATCH_AFTER_SECONDS)  # a timer of the loop's, which comes before
    exchange.lifeline.release()
    lines.remove(exchange.lifeline)
    await asyncio.sleep(0)  # the watch ends
    left = weakref.ref(exchange)
    gc.disable()
    try:
        del exchange
        assert left() is None
    finally:
        gc.enable()
