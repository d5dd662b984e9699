"""Who makes room at a replica, and in which order."""

from __future__ import annotations

from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.capacity import Capacity
from sluice.router.pool.load import LoadBook
from sluice.router.pool.placement import Decision, Prompt
from sluice.router.pool.queue_request import Tier
from sluice.router.pool.slack_flights import BATCH_FIRST, Flight, SlackFlights

STEP = 500


def flight(
    key: str,
    tokens: int = 400,
    *,
    tier: Tier = "interactive",
    slack: bool = True,
    taken_back: int = 0,
) -> Flight:
    request = PoolRequest(key, Prompt(tokens, (), 100), 10, tier=tier)
    made = Flight(
        request, request.queued(tokens, 0.0), Decision("r", 0, tokens, "load"), 0.0, slack
    )
    for _ in range(taken_back):
        made.queued = made.queued_again()
    return made


def at_replica(*flights: Flight) -> SlackFlights:
    made = SlackFlights()
    made.join("r")
    for each in flights:
        made.add(each)
    return made


def in_front(*flights: Flight) -> list[str]:
    return [each.request.id for each in at_replica(*flights).in_front("r", STEP)]


def test_what_fits_a_step_is_not_in_front() -> None:
    assert in_front(flight("a")) == []
    assert in_front(flight("a"), flight("b")) == ["a", "b"]
    assert in_front(flight("a", tokens=600)) == ["a"]


def test_who_is_not_in_front() -> None:
    assert in_front(flight("a", 600, tier="batch")) == []
    assert in_front(flight("a", 600, slack=False)) == []


def test_what_is_computed_is_not_in_front() -> None:
    computed = flight("a", 600)
    flights = at_replica(computed)
    computed.started = True
    flights.computed(computed)
    assert flights.in_front("r", STEP) == []


def test_what_was_taken_back_often_stays() -> None:
    assert in_front(flight("a", 600, taken_back=3)) == ["a"]
    assert in_front(flight("a", 600, taken_back=4)) == []


def test_batch_goes_before_others_and_the_youngest_first() -> None:
    loads, capacity = LoadBook("g"), Capacity(BoundPolicy(2.0))
    loads.add("r")
    limits = ReplicaLimits(100, 100, max_running=5, step_tokens=STEP)
    capacity.join(loads["r"], limits)
    flights = [
        flight("b1", tier="batch"),
        flight("f1"),
        flight("f2"),
        flight("b2", tier="batch"),
        flight("b3", tier="batch", taken_back=9),
    ]
    for each in flights:
        loads.dispatched("r", 0, 0)
        each.started = True
    there = at_replica(*flights)

    def gone(tiers: tuple[Tier, ...], running: int) -> list[str]:
        head = PoolRequest("head", Prompt(100, (), 100), 10)
        loads["r"].running = running
        way = there.in_the_way(head, tiers, {}, loads, capacity, 1.0, 0.0)
        return [each.request.id for each in way]

    assert gone(BATCH_FIRST, 5) == ["b3"]
    assert gone(BATCH_FIRST, 8) == ["b3", "b2", "b1", "f2"]
    assert gone(("batch",), 7) == ["b3", "b2", "b1"]
    assert gone(("batch",), 8) == []
