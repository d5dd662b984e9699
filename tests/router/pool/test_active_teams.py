"""Who has had more than its share leaves room to the others."""

from __future__ import annotations

from random import Random

from sluice.router.pool.active_teams import ACTIVE_SECONDS, ActiveTeams
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler

MAX_RUNNING, SPARE = 16, 4


def test_a_team_that_is_alone_leads_nobody() -> None:
    teams = ActiveTeams({"a": 100.0})
    teams.asks("a", 0.0)
    assert teams.lead("a", 0.0) == 0.0


def test_a_lead_is_over_the_team_that_has_had_least() -> None:
    counters = {"a": 100.0, "b": 40.0, "c": 70.0, "absent": 0.0}
    teams = ActiveTeams(counters)
    for team in "abc":
        teams.asks(team, 0.0)
    assert [teams.lead(team, 0.0) for team in "abc"] == [60.0, 0.0, 30.0]


def test_who_asks_for_nothing_more_is_forgotten() -> None:
    teams = ActiveTeams({"a": 100.0, "b": 40.0})
    teams.asks("b", 0.0)
    teams.asks("a", ACTIVE_SECONDS - 1)
    assert teams.lead("a", ACTIVE_SECONDS - 1) == 60.0
    assert teams.lead("a", ACTIVE_SECONDS + 0.1) == 0.0


def test_a_team_that_comes_for_the_first_time_leads_nobody() -> None:
    teams = ActiveTeams({"a": 100.0, "b": 40.0})
    for team in "ab":
        teams.asks(team, 0.0)
    assert teams.lead("new", 0.0) == 0.0
    pool = scheduler()
    for team in ("a", "b", "new"):
        request = PoolRequest(team, Prompt(10, (), 16), output_tokens=10, team=team)
        assert pool.dispatch_now(request, 0.0) is not None


def test_what_others_have_had_since_is_seen_a_moment_later() -> None:
    counters = {"a": 100.0, "b": 40.0}
    teams = ActiveTeams(counters)
    for team in "ab":
        teams.asks(team, 0.0)
    assert teams.lead("a", 0.0) == 60.0
    counters["b"] = 90.0
    assert teams.lead("a", 1.0) == 10.0


def scheduler(rate: float = 50.0) -> PoolScheduler:
    """A pool of one replica that computes so many prompt tokens a second."""
    made = PoolScheduler("g", PrefixLoad(Random(1)), BoundPolicy(ttft_target=2.0))
    limits = ReplicaLimits(10_000, 16, max_running=MAX_RUNNING, prefill_rate=rate)
    made.join("r", limits)
    return made


def ask(pool: PoolScheduler, team: str, number: int, now: float) -> list[str]:
    """Submit, and tell what was dispatched at once."""
    request = PoolRequest(f"{team}-{number}", Prompt(10, (), 16), output_tokens=10, team=team)
    if pool.submit(request, now) is not None:
        return []
    started = [each.request.id for each in pool.decide(now) if isinstance(each, Dispatch)]
    for request_id in started:
        pool.first_token(request_id, now)
        pool.generated(request_id, 10)
    return started


def test_a_flood_leaves_room_for_the_others_and_none_where_it_is_alone() -> None:
    alone = scheduler()
    assert sum(len(ask(alone, "flood", n, 0.0)) for n in range(40)) == MAX_RUNNING
    pool = scheduler()
    assert ask(pool, "small", 0, 0.0) == ["small-0"]
    pool.ended("small-0", 0.0)
    assert sum(len(ask(pool, "flood", n, 0.1)) for n in range(40)) == MAX_RUNNING - SPARE
    # at once, though a crowd of the flood came before
    for number in range(1, SPARE + 1):
        assert ask(pool, "small", number, 0.2) == [f"small-{number}"]
    assert not ask(pool, "small", SPARE + 1, 0.2)


def test_the_same_without_a_queue() -> None:
    pool = scheduler()
    prompt = Prompt(10, (), 16)
    small = PoolRequest("small", prompt, output_tokens=10, team="small")
    assert pool.dispatch_now(small, 0.0) is not None
    taken = 0
    for n in range(40):
        request = PoolRequest(f"flood-{n}", prompt, output_tokens=10, team="flood")
        if pool.dispatch_now(request, 0.1) is None:
            break
        pool.first_token(request.id, 0.1)
        pool.generated(request.id, 10)
        taken += 1
    assert taken == MAX_RUNNING - SPARE - 1  # with the one of the other team


def test_teams_that_use_the_same_leave_nothing() -> None:
    pool = scheduler()
    started = sum(len(ask(pool, team, n, 0.0)) for n in range(20) for team in "ab")
    assert started == MAX_RUNNING
