"""A request on its way through a pool, in the gateway: waiting for its turn, then at a replica."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from sluice.backends.base import Overloaded
from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.fair_queue import Shed
from sluice.router.pool.placement import Decision

#: Why a call is broken off from outside: its replica was ejected, or it makes room for others.
Interruption = Literal["ejected", "yielded"]


class Flight(msgspec.Struct, eq=False):
    """One request's; made in the task that serves it.

    It does not hold the request as it came, which holds what asked for it: that would keep all of
    an answer until the collector of cycles comes by.

    Attributes:
        id: unique in this process.
        request: as the scheduler knows it.
        stream: its answer comes in pieces.
        prompt_bytes: length of its prompt.
        arrived: when it came, seconds.
        task: serves it.
        decision: where it is; None while it waits.
        dispatched: when it went there.
        heard: when its replica last sent something of an answer.
        told: the decision that was told to those who want to know where it goes.
        answered: the replica has begun to answer, so that it can't go elsewhere any more.
        stalled: its answer has stood still for longer than it may.
        failed_at: the replicas that have failed it.
        suspects: those of them that are at fault only if another does better.
    """

    id: str
    request: PoolRequest
    stream: bool
    prompt_bytes: int
    arrived: float
    task: asyncio.Task[Any] | None
    decision: Decision | None = None
    dispatched: float = 0.0
    heard: float = 0.0
    told: Decision | None = None
    answered: bool = False
    stalled: bool = False
    failed_at: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    _shed: Shed | None = None
    _turn: asyncio.Future[None] | None = None
    _calling: bool = False
    _cancelling: int = 0
    _interrupted: Interruption | None = None

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
        if self._calling and self._interrupted is None and self.task is not None:
            self._interrupted = why
            self.task.cancel()
        if why == "yielded":
            self.decision = None

    def begin_call(self) -> None:
        """From now on the call may be interrupted."""
        self._calling = True
        self._cancelling = 0 if self.task is None else self.task.cancelling()

    def end_call(self) -> None:
        """From now on it may not."""
        self._calling = False

    def interruption(self) -> Interruption | None:
        """In a handler of CancelledError: why the pool interrupted the call; None if somebody else
        cancelled the task, perhaps besides, and the error must be raised again."""
        why, self._interrupted = self._interrupted, None
        if why is None or self.task is None or self.task.uncancel() > self._cancelling:
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
