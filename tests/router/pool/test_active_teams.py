"""Who asks for more than its share leaves room to the others."""

from __future__ import annotations

from random import Random

import pytest

from sluice.router.pool.active_teams import ACTIVE_SECONDS, ActiveTeams
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.fair_queue import QueuePolicy
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler

MAX_RUNNING = 16
#: Seconds after which it is forgotten that an empty pool takes sixteen at once.
FLOODED = 180
PROMPT, ANSWER = 10, 10
MOST = 100.0


def asked(seconds: int, **rates: float) -> ActiveTeams:
    """Teams that ask for so many tokens a second, in pieces, until now."""
    teams = ActiveTeams()
    for step in range(10 * seconds):
        for team, rate in rates.items():
            teams.asks(team, 1.0, rate / 10, step / 10)
        teams.over("", MOST, step / 10)
    return teams


def over(teams: ActiveTeams, now: float, most: float = MOST) -> set[str]:
    return {team for team in "abc" if teams.over(team, most, now)}


def test_where_there_is_enough_for_everybody_nobody_asks_for_too_much() -> None:
    assert over(asked(30, a=80.0, b=10.0), 30.0) == set()


def test_a_team_that_asks_for_ten_times_its_share_asks_for_too_much() -> None:
    assert over(asked(30, a=30.0, b=330.0, c=10.0), 30.0) == {"b"}
    assert over(asked(4, a=30.0, b=330.0, c=10.0), 4.0) == {"b"}


def test_a_team_keeps_its_share_where_another_asks_for_less() -> None:
    teams = asked(30, a=30.0, b=1.0, c=330.0)
    assert over(teams, 30.0) == {"c"}
    assert teams.within() == pytest.approx(31.0, rel=0.1)


def test_shares_are_by_weight() -> None:
    teams = ActiveTeams()
    for second in range(30):
        teams.asks("a", 3.0, 80.0, float(second))
        teams.asks("b", 1.0, 80.0, float(second))
    assert over(teams, 29.0) == {"b"}


def test_answers_count() -> None:
    teams = ActiveTeams()
    for second in range(30):
        teams.asks("a", 1.0, 10.0, float(second))
        teams.asks("b", 1.0, 10.0, float(second))
        teams.generated("b", 200.0)
    teams.generated("unknown", 200.0)
    assert over(teams, 29.0) == {"b"}


def test_who_asks_for_nothing_more_is_forgotten() -> None:
    teams = asked(30, a=30.0, b=330.0)
    now = 30.0 + ACTIVE_SECONDS
    teams.asks("a", 1.0, 0.0, now)
    assert over(teams, now) == set()
    assert over(teams, now + ACTIVE_SECONDS + 1) == set()


def scheduler(isolation: float) -> PoolScheduler:
    """A pool of one replica."""
    policy = QueuePolicy(spare=isolation)
    made = PoolScheduler("g", PrefixLoad(Random(1)), BoundPolicy(ttft_target=2.0), policy)
    made.join("r", ReplicaLimits(10_000, 16, max_running=MAX_RUNNING, prefill_rate=100.0))
    return made


class Site:
    """A pool, and what runs there."""

    def __init__(self, isolation: float = 2.0) -> None:
        self.pool = scheduler(isolation)
        self.running: list[str] = []
        self._number = 0

    def ask(self, team: str, now: float) -> bool:
        """Whether it was dispatched at once; else it waits."""
        self._number += 1
        prompt = Prompt(PROMPT, (), 16)
        request = PoolRequest(f"{team}-{self._number}", prompt, output_tokens=ANSWER, team=team)
        if self.pool.dispatch_now(request, now) is not None:
            self._run(request.id, now)
        else:
            assert self.pool.submit(request, now) is None
            self._decide(now)
        return request.id in self.running

    def end(self, now: float) -> None:
        """The oldest answer is complete."""
        if self.running:
            self.pool.ended(self.running.pop(0), now)
            self._decide(now)

    def of(self, team: str) -> int:
        """How many of a team run."""
        return sum(each.startswith(team) for each in self.running)

    def _decide(self, now: float) -> None:
        for action in self.pool.decide(now):
            if isinstance(action, Dispatch):
                self._run(action.request.id, now)

    def _run(self, request: str, now: float) -> None:
        self.running.append(request)
        self.pool.first_token(request, now)
        self.pool.generated(request, ANSWER)


def flood(site: Site) -> None:
    for step in range(FLOODED * 10):  # two answers a second end, of ten and a half asked for
        now = step / 10
        site.ask("flood", now)
        if step % 20 == 0:
            site.ask("small", now)
        if step % 5 == 0:
            site.end(now)


def test_a_flood_leaves_room_for_the_others() -> None:
    site = Site()
    flood(site)
    assert MAX_RUNNING / 4 <= site.of("flood") <= 3 * MAX_RUNNING / 4
    # at once, though a crowd of the flood came before
    free = MAX_RUNNING - len(site.running)
    assert all(site.ask("small", FLOODED) for _ in range(free))
    assert not site.ask("small", FLOODED)


def test_without_isolation_it_leaves_none() -> None:
    site = Site(isolation=0.0)
    flood(site)
    assert len(site.running) >= MAX_RUNNING - 1


def test_a_flood_that_is_alone_has_all_of_it() -> None:
    site = Site()
    for step in range(200):
        site.ask("flood", step / 10)
    assert site.of("flood") == MAX_RUNNING


def test_teams_that_ask_for_the_same_leave_nothing() -> None:
    site = Site()
    for step in range(200):
        for team in "ab":
            site.ask(team, step / 10)
    assert len(site.running) == MAX_RUNNING
