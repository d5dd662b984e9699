"""Copies of requests to shadows: of whom, how many, and that nobody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sluice.backends.base import ConnectionLost, Endpoint
from sluice.router.catalog import Deployment, Model, Trial
from sluice.router.dispatch import StreamStart, UpstreamFailure
from sluice.router.plan import Route
from sluice.router.shadows import Shadows
from sluice.router.translation import Call
from sluice.wire.answer import Answer
from sluice.wire.errors import ErrorDetail
from sluice.wire.request import Request
from sluice.wire.usage import Usage
from tests.harness.polling import eventually_async

PROD = Model("m", 100, frozenset({"chat"}), frozenset({"interactive"}), (Deployment("blue", "m"),))
TRIED = replace(PROD, deployments=(Deployment("green", "m"),))
WATCHED = replace(PROD, shadow=Trial(TRIED, 100.0))
CALL = Call(Endpoint.CHAT, Request({}, "m"), "id-1")


class Upstream:
    """A dispatcher that answers as told, when told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Route, Call]] = []
        self.answer: Any = Answer(b"{}", Usage())
        self.open = asyncio.Event()
        self.open.set()

    async def dispatch(self, route: Route, call: Call, observer: Any) -> Any:
        self.asked.append((route, call))
        await self.open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Response:
    """A streamed response of these pieces; an exception among them is raised."""

    def __init__(self, *pieces: Any) -> None:
        self._pieces = list(pieces)
        self.closed = False

    async def next(self) -> bytes:
        piece: Any = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        assert isinstance(piece, bytes)
        return piece

    def close(self) -> None:
        self.closed = True


class Stream:
    """A codec that is done when it is told of the end."""

    done = False
    failure: ErrorDetail | None = None

    def feed(self, piece: bytes) -> bytes:
        return piece

    def end(self) -> bytes:
        return b""


class Permit:
    failures = 0

    def failed(self) -> None:
        self.failures += 1


def streamed(response: Response, permit: Permit) -> StreamStart:
    anything: Any = None
    stream: Any = Stream()
    given: Any = (response, permit)
    return StreamStart(b"", stream, given[0], anything, 0, anything, given[1])


class Site:
    def __init__(self) -> None:
        self.upstream = Upstream()
        self.counted: list[tuple[str, str]] = []
        dispatcher: Any = self.upstream
        self.shadows = Shadows(
            dispatcher, lambda *counted: self.counted.append(counted), copies=2, seconds=5.0
        )

    async def until(self, *counted: tuple[str, str]) -> None:
        async def reached() -> bool:
            return self.counted == list(counted)

        await eventually_async(reached)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.shadows.stop()


async def test_a_copy_is_a_batch_request_of_one_call_to_the_shadow(site: Site) -> None:
    site.shadows.copy(WATCHED, CALL)
    await site.until(("m", "ok"))
    [(route, call)] = site.upstream.asked
    assert route == Route(TRIED)
    assert (call.tier, call.priority, call.request_id) == ("batch", "low", "id-1-shadow")
    assert call.request.disable_fallbacks


async def test_models_without_a_shadow_are_not_copied(site: Site) -> None:
    site.shadows.copy(PROD, CALL)
    site.shadows.copy(replace(PROD, shadow=Trial(TRIED, 0.0)), CALL)
    assert site.upstream.asked == []


async def test_a_share_of_the_requests_is_copied(site: Site) -> None:
    half = replace(PROD, shadow=Trial(TRIED, 50.0))
    for number in range(400):
        site.shadows.copy(half, msgspec.structs.replace(CALL, request_id=str(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert 120 < len(site.upstream.asked) < 280


async def test_nobody_waits_and_too_many_are_dropped(site: Site) -> None:
    site.upstream.open.clear()
    for _ in range(3):
        site.shadows.copy(WATCHED, CALL)
    assert site.counted == [("m", "dropped")]
    site.upstream.open.set()
    await site.until(("m", "dropped"), ("m", "ok"), ("m", "ok"))


async def test_a_failure_is_counted_and_goes_nowhere(site: Site) -> None:
    site.upstream.answer = UpstreamFailure(ErrorDetail("no"), where="send")
    site.shadows.copy(WATCHED, CALL)
    await site.until(("m", "failed"))


async def test_a_stream_is_read_to_its_end(site: Site) -> None:
    response, permit = Response(b"a", b"b"), Permit()
    site.upstream.answer = streamed(response, permit)
    site.shadows.copy(WATCHED, CALL)
    await site.until(("m", "ok"))
    assert response.closed
    assert permit.failures == 0


async def test_a_stream_that_breaks_is_the_shadows_fault(site: Site) -> None:
    response, permit = Response(b"a", ConnectionLost("gone")), Permit()
    site.upstream.answer = streamed(response, permit)
    site.shadows.copy(WATCHED, CALL)
    await site.until(("m", "failed"))
    assert response.closed
    assert permit.failures == 1


async def test_copies_in_progress_end_with_the_process(site: Site) -> None:
    site.upstream.open.clear()
    site.shadows.copy(WATCHED, CALL)
    await asyncio.sleep(0)
    await site.shadows.stop()
    assert site.counted == []
