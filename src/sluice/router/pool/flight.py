"""A request on its way through a pool, in the gateway: waiting for its turn, then at a replica."""

from __future__ import annotations

import asyncio
from typing import Literal

from sluice.backends.base import Overloaded, UpstreamRequest
from sluice.router.pool.fair_queue import Priority, Shed
from sluice.router.pool.placement import Decision

#: Why a call is broken off from outside: its replica was ejected, or it makes room for others.
Interruption = Literal["ejected", "yielded"]


class Flight:
    """One request's; made in the task that serves it.

    Attributes:
        id: unique in this process.
        request: as it came.
        priority: the class in which it waits.
        prompt_bytes: length of its prompt.
        hashes: its prompt's blocks, where they are of use once it has ended.
        arrived: when it came, seconds.
        decision: where it is; None while it waits.
        dispatched: when it went there.
        heard: when its replica last sent something of an answer.
        answered: the replica has begun to answer, so that it can't go elsewhere any more.
        failed_at: the replicas that have failed it.
        suspects: those of them that are at fault only if another does better.
    """

    __slots__ = (
        "_calling",
        "_cancelling",
        "_interrupted",
        "_shed",
        "_task",
        "_turn",
        "answered",
        "arrived",
        "decision",
        "dispatched",
        "failed_at",
        "hashes",
        "heard",
        "id",
        "priority",
        "prompt_bytes",
        "request",
        "stalled",
        "suspects",
    )

    def __init__(
        self,
        flight_id: str,
        request: UpstreamRequest,
        priority: Priority,
        prompt_bytes: int,
        arrived: float,
    ) -> None:
        self.id = flight_id
        self.request = request
        self.priority = priority
        self.prompt_bytes = prompt_bytes
        self.hashes: tuple[int, ...] = ()
        self.arrived = arrived
        self.decision: Decision | None = None
        self.dispatched = self.heard = arrived
        self.answered = False
        self.stalled = False
        self._shed: Shed | None = None
        self.failed_at: list[str] = []
        self.suspects: list[str] = []
        self._task = asyncio.current_task()
        self._turn: asyncio.Future[None] | None = None
        self._calling = False
        self._cancelling = 0
        self._interrupted: Interruption | None = None

    @property
    def replica(self) -> str:
        """Where it is; empty while it waits."""
        return "" if self.decision is None else self.decision.replica

    def assign(self, decision: Decision, now: float) -> None:
        """Its turn has come."""
        self.decision = decision
        self.dispatched = self.heard = now
        self._wake()

    def refuse(self, shed: Shed) -> None:
        """Its turn does not come in time."""
        self._shed = shed
        self._wake()

    async def turn(self) -> Decision | Shed:
        """Wait for the decision: where it goes, or that it is refused."""
        while self.decision is None:
            if self._shed is not None:
                return self._shed
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        return self.decision

    def interrupt(self, why: Interruption) -> None:
        """Break off the call, if it is under way and has no answer; the task finds out by a
        CancelledError, see `interruption`."""
        if self._calling and self._interrupted is None and self._task is not None:
            self._interrupted = why
            self._task.cancel()
        if why == "yielded":
            self.decision = None

    def begin_call(self) -> None:
        """From now on the call may be interrupted."""
        self._calling = True
        self._cancelling = 0 if self._task is None else self._task.cancelling()

    def end_call(self) -> None:
        """From now on it may not."""
        self._calling = False

    def interruption(self) -> Interruption | None:
        """In a handler of CancelledError: why the pool interrupted the call; None if somebody else
        cancelled the task, perhaps besides, and the error must be raised again."""
        why, self._interrupted = self._interrupted, None
        if why is None or self._task is None or self._task.uncancel() > self._cancelling:
            return None
        return why

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


def overloaded(shed: Shed) -> Overloaded:
    """What a refused request's caller hears."""
    text = {
        "wait": "the pool is at its bound, and the first token would come too late",
        "full": "too many requests wait for the pool",
        "expired": "the pool was slower than it looked, and the first token would come too late",
    }
    return Overloaded(text[shed.reason], shed.retry_after)
