"""Who has had more than its share leaves room to the others."""

from __future__ import annotations

from random import Random

from sluice.router.pool.active_teams import ACTIVE_SECONDS, ActiveTeams
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler

MAX_RUNNING, SPARE = 16, 3


def test_a_team_that_is_alone_leads_nobody() -> None:
    teams = ActiveTeams({"a": 100.0})
    teams.asks("a", 0.0)
    assert teams.lead("a", 0.0) == 0.0


def test_a_lead_is_over_the_team_that_has_had_least() -> None:
    counters = {"a": 100.0, "b": 40.0, "c": 70.0, "absent": 0.0}
    teams = ActiveTeams(counters)
    for team in "abc":
        teams.asks(team, 0.0)
    for number in range(1, SPARE + 1):
        assert ask(pool, "small", number, 0.2) == [f"small-{number}"]
    assert not ask(pool, "small", 4, 0.2)


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
