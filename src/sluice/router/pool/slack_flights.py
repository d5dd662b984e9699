"""The requests at the replicas of a pool that fill what others leave: those of the batch tier, and
of teams above their share. They make room for the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.capacity import Capacity
from sluice.router.pool.load import LoadBook
from sluice.router.pool.placement import Decision
from sluice.router.pool.queue_request import QueueRequest, Tier


class Flight(msgspec.Struct):
    """A request at a replica.

    Attributes:
        queued: as the queue saw it.
        decision: where it went, and why.
        dispatched: when, seconds.
        slack: it fills what others leave.
        started: its first token came.
    """

    request: PoolRequest
    queued: QueueRequest
    decision: Decision
    dispatched: float
    slack: bool = False
    started: bool = False

    @property
    def prefill_tokens(self) -> int:
        """Tokens of its prompt that the replica has yet to compute, as far as is known."""
        return 0 if self.started else self.decision.uncached_tokens

    def queued_again(self) -> QueueRequest:
        """As it waits once more, having been taken back."""
        return msgspec.structs.replace(self.queued, taken_back=self.queued.taken_back + 1)


#: So many times a long prompt of a team above its share may be begun for nothing: where an engine
#: keeps no prefixes it would never end.
_OFTEN = 4

#: Those of the batch tier go before those of teams above their shares.
BATCH_FIRST: tuple[Tier, ...] = ("batch", "interactive")


class SlackFlights:
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
        """A request went to its replica; one that fills no slack is none of these, nor an
        interactive one that came back often."""
        often = flight.queued.taken_back >= _OFTEN and flight.request.tier == "interactive"
        if flight.slack and not often:
            self._flights[flight.decision.replica][flight.request.id] = flight

    def remove(self, flight: Flight) -> None:
        """It is over, or cannot be taken back any more; another one is ignored."""
        if flight.slack:
            self._flights[flight.decision.replica].pop(flight.request.id, None)

    def computed(self, flight: Flight) -> None:
        """Its prompt is: there is little to be won by taking an interactive one back any more."""
        if flight.request.tier == "interactive":
            self.remove(flight)

    def youngest(self, count: int) -> list[Flight]:
        """So many of the batch tier at each replica that came last."""
        return [
            flight
            for own in self._flights.values()
            for flight in [each for each in own.values() if each.request.tier == "batch"][-count:]
        ]

    def in_front(self, replica: str, step_tokens: int) -> list[Flight]:
        """The interactive ones whose prompts a replica computes before one that comes now, beyond
        the step under way, which nothing stops.

        Args:
            replica: where to.
            step_tokens: prompt tokens that one step of it computes.
        """
        flights = [
            flight
            for flight in self._flights[replica].values()
            if flight.request.tier == "interactive"
        ]
        return flights if sum(each.prefill_tokens for each in flights) > step_tokens else []

    def in_the_way(
        self,
        head: PoolRequest,
        tiers: Collection[Tier],
        depths: Mapping[str, int],
        loads: LoadBook,
        capacity: Capacity,
        part: float,
        now: float,
    ) -> list[Flight]:
        """Those without which there is room for an interactive request; [] if there never is.

        Of the replicas where it helps, the one where the fewest must go, and there the youngest,
        the tiers in their order.

        Args:
            head: the request whose turn it is.
            tiers: of those that may go.
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
            for flight in _first_to_go(flights.values(), tiers):
                load.running -= 1
                load.context_tokens -= flight.request.context_tokens
                load.queued_prefill_tokens -= flight.prefill_tokens
                gone.append(flight)
                if bound.admits(load, uncached, head.context_tokens, part, now):
                    if not best or len(gone) < len(best):
                        best = gone
                    break
        return best


def _first_to_go(flights: Collection[Flight], tiers: Collection[Tier]) -> list[Flight]:
    youngest = list(flights)[::-1]
    return [flight for tier in tiers for flight in youngest if flight.request.tier == tier]
