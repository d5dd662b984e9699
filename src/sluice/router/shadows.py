"""Shadows: versions of models that are asked what others answer, so that they can be watched under
real requests before anybody depends on them.

A copy is made when the request itself has begun to be answered, and never in its way: it is a
batch request of the lowest priority, costs one upstream call, and is dropped where too many copies
are in progress. Its answer is read to the end and thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from sluice.backends.base import BackendError, Placed
from sluice.router.catalog import Model
from sluice.router.dispatch import (
    Dispatcher,
    StreamStart,
    TargetsResting,
    UpstreamFailure,
)
from sluice.router.plan import Route, Step
from sluice.router.policy import takes_part
from sluice.router.translation import Call
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import InvalidRequest

#: Copies in progress at a time.
COPIES = 8

#: Seconds for one copy.
COPY_SECONDS = 120.0

Outcome = Literal["ok", "failed", "dropped"]


class Shadows:
    """Copies requests to the shadows of their models."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        count: Callable[[str, Outcome], None],
        copies: int = COPIES,
        seconds: float = COPY_SECONDS,
    ) -> None:
        """Args:
        dispatcher: of the requests themselves.
        count: is told of each copy: its model, and how it went.
        copies: see `COPIES`.
        seconds: see `COPY_SECONDS`.
        """
        self._dispatcher = dispatcher
        self._count = count
        self._copies = copies
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def copy(self, model: Model, call: Call) -> None:
        """Ask the model's shadow the same, if it has one and the request takes part."""
        shadow = model.shadow
        if shadow is None or not takes_part(model.name, call.request_id, shadow.share):
            return
        if len(self._tasks) >= self._copies:
            self._count(model.name, "dropped")
            return
        task = asyncio.create_task(self._ask(shadow.model, call), name="shadow")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Drop the copies in progress."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, model: Model, call: Call) -> None:
        copied = msgspec.structs.replace(
            call,
            request=msgspec.structs.replace(call.request, disable_fallbacks=True),
            request_id=f"{call.request_id}-shadow",
            tier="batch",
            priority="low",
        )
        outcome: Outcome = "failed"
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._dispatcher.dispatch(Route(model), copied, _Nobody())
                if not isinstance(answer, StreamStart) or await _read(answer):
                    outcome = "ok"
        except (UpstreamFailure, TargetsResting, InvalidRequest, TimeoutError):
            pass  # which the count says
        self._count(model.name, outcome)


async def _read(start: StreamStart) -> bool:
    """Read a stream to its end; whether it had one."""
    try:
        while not start.stream.done:
            piece = await start.response.next()
            if not piece:
                start.stream.end()
                break
            start.stream.feed(piece)
    except BackendError:
        start.permit.failed()
        return False
    finally:
        start.response.close()
    return start.stream.failure is None


class _Nobody:
    """Is told of calls, and does nothing; see `AttemptObserver`."""

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None: ...

    def attempt_placed(self, placed: Placed) -> None: ...

    def attempt_streams(self, stream: StreamCodec) -> None: ...

    def attempt_ended(self, step: Step, reason: str) -> None: ...
