"""The batch requests at the replicas of a pool, which make room for interactive ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.capacity import Capacity
from sluice.router.pool.load import LoadBook
from sluice.router.pool.placement import Decision
from sluice.router.pool.queue_request import QueueRequest


class Flight(msgspec.Struct):
    """A request at a replica.

    Attributes:
        queued: as the queue saw it.
        decision: where it went, and why.
        dispatched: when, seconds.
        started: its first token came.
    """

    request: PoolRequest
    queued: QueueRequest
    decision: Decision
    dispatched: float
    started: bool = False

    @property
    def prefill_tokens(self) -> int:
        """Tokens of its prompt that the replica has yet to compute, as far as is known."""
        return 0 if self.started else self.decision.uncached_tokens


class BatchFlights:
    """By replica, the oldest first."""

    def __init__(self) -> None:
        self._flights: dict[str, dict[str, Flight]] = {}

    def join(self, replica: str) -> None:
        """A replica is there, and has none."""
        self._flights[replica] = {}

    def leave(self, replica: str) -> None:
        """A replica is gone, and its requests with it."""
        self._flights.pop(replica, None)

    def add(self, flight: Flight) -> None:
        """A request went to its replica; an interactive one is none of these."""
        if flight.request.tier == "batch":
            self._flights[flight.decision.replica][flight.request.id] = flight

    def remove(self, flight: Flight) -> None:
        """It is over, or cannot be taken back any more; another one is ignored."""
        if flight.request.tier == "batch":
            self._flights[flight.decision.replica].pop(flight.request.id, None)

    def youngest(self, count: int) -> list[Flight]:
        """So many at each replica that came last."""
        return [flight for own in self._flights.values() for flight in list(own.values())[-count:]]

    def in_the_way(
        self,
        head: PoolRequest,
        depths: Mapping[str, int],
        loads: LoadBook,
        capacity: Capacity,
        part: float,
        now: float,
    ) -> list[Flight]:
        """Those without which there is room for an interactive request; [] if there never is.

        Of the replicas where it helps, the one where the fewest must go, and there the youngest.

        Args:
            head: the request whose turn it is.
            depths: leading blocks that each replica has of it.
            loads, capacity: of all replicas.
            part: of the room that it may fill itself.
            now: seconds.
        """
        best: list[Flight] = []
        for replica, flights in self._flights.items():
            uncached = head.prompt.uncached(depths.get(replica, 0))
            load, bound = replace(loads[replica]), capacity[replica]
            gone: list[Flight] = []
            for flight in reversed(list(flights.values())):
                load.running -= 1
                load.context_tokens -= flight.request.context_tokens
                load.queued_prefill_tokens -= flight.prefill_tokens
                gone.append(flight)
                if bound.admits(load, uncached, head.context_tokens, part, now):
                    if not best or len(gone) < len(best):
                        best = gone
                    break
        return best
