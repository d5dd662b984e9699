"""Whose items run next."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from sluice.gateway.batch.sharing import Job, needed, share

A, B = UUID(int=1), UUID(int=2)
DAY = 86_400.0


def job(team: UUID = A, waiting: int = 1000, **more: Any) -> Job:
    values: dict[str, Any] = {
        "id": uuid4(),
        "team_id": team,
        "model": "m",
        "priority": "normal",
        "live": True,
        "seconds_left": DAY,
        "waiting": waiting,
        "running": 0,
        **more,
    }
    return Job(**values)


def test_nothing_waits() -> None:
    assert share(10, [], 1.0) == {}
    assert share(10, [job(waiting=0)], 1.0) == {}
    assert share(0, [job()], 1.0) == {}


def test_teams_share_alike_however_many_batches_they_have() -> None:
    many, one = [job(A) for _ in range(9)], job(B)
    given = share(18, [*many, one], 0.001)
    assert given[one.id] == 9
    assert sum(given[each.id] for each in many) == 9


def test_what_one_team_does_not_need_is_the_others() -> None:
    few, much = job(A, waiting=2), job(B)
    assert share(10, [few, much], 0.001) == {few.id: 2, much.id: 8}


def test_priorities_weigh() -> None:
    high, normal, low = (
        job(UUID(int=n), priority=p) for n, p in enumerate(("high", "normal", "low"))
    )
    given = share(70, [high, normal, low], 0.001)
    assert [given[each.id] for each in (high, normal, low)] == [40, 20, 10]


def test_priorities_weigh_within_a_team() -> None:
    high, low = job(priority="high"), job(priority="low")
    assert share(10, [high, low], 0.001) == {high.id: 8, low.id: 2}


def test_who_runs_much_waits_for_the_others() -> None:
    busy, idle = job(A, running=50), job(B)
    assert share(20, [busy, idle], 0.001) == {idle.id: 20}


def test_a_window_that_closes_comes_first_with_half_of_the_room() -> None:
    urgent, others = job(A, seconds_left=60.0), [job(UUID(int=n)) for n in range(2, 10)]
    assert needed(urgent, 1.0) > 18
    given = share(32, [urgent, *others], 1.0)
    assert given[urgent.id] == 16
    assert all(given[each.id] == 2 for each in others)


def test_a_window_that_will_be_met_anyway_gets_no_more_than_its_share() -> None:
    soon, later = job(A, waiting=100, seconds_left=3600.0), job(B)
    assert needed(soon, 1.0) == 1
    given = share(20, [soon, later], 1.0)
    assert given == {soon.id: 10, later.id: 10}


def test_no_more_is_given_than_there_is_room_or_waits() -> None:
    jobs = [job(UUID(int=n), waiting=n, seconds_left=1.0) for n in range(1, 30)]
    given = share(100, jobs, 5.0)
    assert sum(given.values()) == 100
    assert all(given.get(each.id, 0) <= each.waiting for each in jobs)
