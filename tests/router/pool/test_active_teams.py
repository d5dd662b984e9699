"""Who asks for more than its share leaves room to the others."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from sluice.router.pool.active_teams import ACTIVE_SECONDS, ActiveTeams
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.fair_queue import FairQueue, QueuePolicy, QueueRequest, Tier
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler, Yield

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


def scheduler(
    isolation: float = 2.0, rate: float = 100.0, step_tokens: int = 2_048
) -> PoolScheduler:
    """A pool of one replica."""
    policy = QueuePolicy(spare=isolation)
    made = PoolScheduler("g", PrefixLoad(Random(1)), BoundPolicy(ttft_target=2.0), policy)
    limits = ReplicaLimits(
        10_000, 16, max_running=MAX_RUNNING, prefill_rate=rate, step_tokens=step_tokens
    )
    made.join("r", limits)
    return made


class Site:
    """A pool, and what runs there."""

    def __init__(self, pool: PoolScheduler | None = None) -> None:
        self.pool = pool or scheduler()
        self.running: list[str] = []
        self.begun: list[tuple[str, float]] = []
        self.computes = True
        self._number = 0

    def ask(self, team: str, now: float) -> bool:
        """Whether it was dispatched at once; else it waits."""
        self._number += 1
        prompt = Prompt(PROMPT, (), 16)
        request = PoolRequest(f"{team}-{self._number}", prompt, ANSWER, team)
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
            elif isinstance(action, Yield):
                self.running.remove(action.request)

    def _run(self, request: str, now: float) -> None:
        self.running.append(request)
        self.begun.append((request, now))
        if self.computes:
            self.pool.first_token(request, now)
            self.pool.generated(request, ANSWER)


def flood(site: Site, at_once: int = 1) -> None:
    for step in range(FLOODED * 10):  # two answers a second end, of ten and a half asked for
        now = step / 10
        for _ in range(at_once):
            site.ask("flood", now)
        if step % 20 == 0:
            site.ask("small", now)
        if step % 5 == 0:
            site.end(now)


def flooded_and_not_computed(site: Site) -> float:
    """When the last of the flood's requests began, which is the only one that is not computed."""
    flood(site, at_once=3)
    while len(site.running) > MAX_RUNNING / 2:
        site.end(FLOODED)
    site.computes = False
    begun, now = len(site.begun), float(FLOODED)
    while len(site.begun) == begun:
        now += 0.1
        site.ask("flood", now)
    assert site.running[-1].startswith("flood")
    return now


def test_a_flood_leaves_room_for_the_others() -> None:
    site = Site()
    flood(site)
    assert MAX_RUNNING / 4 <= site.of("flood") <= 3 * MAX_RUNNING / 4
    # at once, though a crowd of the flood came before
    free = MAX_RUNNING - len(site.running)
    assert all(site.ask("small", FLOODED) for _ in range(free))
    assert not site.ask("small", FLOODED)


def test_without_isolation_it_leaves_none() -> None:
    site = Site(scheduler(isolation=0.0))
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


@pytest.mark.parametrize(("isolation", "most"), [(2.0, 5.0), (0.0, 8.0)])
def test_a_floods_prompts_take_the_time_that_is_left_and_evenly(
    isolation: float, most: float
) -> None:
    """Of ten requests a second that are served the other team asks for three: twice that leaves
    less than the flood's share, which is a half."""
    waiting = FairQueue(QueuePolicy(spare=isolation), rate=MOST)
    served: list[float] = []
    for step in range(600):
        now = step / 10
        teams = ["flood"] * 10 + (["small"] if step % 10 in (0, 3, 6) else [])
        for number, team in enumerate(teams):
            waiting.offer(QueueRequest(f"{step}-{number}", team, PROMPT, PROMPT), now)
        went = waiting.next(now, lambda request: True)
        if went is not None and went.team == "flood":
            served.append(now)
    late = [at for at in served if at >= 30.0]
    assert 0.8 * most * 30 <= len(late) <= 1.05 * most * 30
    if isolation:
        assert min(after - before for before, after in pairwise(late)) > 0.15


def test_what_a_flood_has_not_had_computed_is_taken_back() -> None:
    site = Site(scheduler(step_tokens=PROMPT // 2))
    now = flooded_and_not_computed(site)
    last = site.running[-1]
    assert site.ask("small", now)
    assert last not in site.running
    assert last in site.pool.queue
    assert site.running[-1].startswith("small")


@pytest.mark.parametrize("teams", ["flood", "flood a b"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_taken_back_each_round_ends_and_nothing_is_lost(seed: int, teams: str) -> None:
    random = Random(seed)
    rate, step_tokens = random.choice((200.0, 1_000.0, 4_000.0)), random.choice((64, 512, 2_048))
    pool = scheduler(rate=rate, step_tokens=step_tokens)
    running: dict[str, bool] = {}
    asked = served = 0
    for step in range(3_000):
        now = step / 50
        team = random.choice(teams.split()) if random.random() < 0.2 else "flood"
        tier: Tier = "batch" if random.random() < 0.1 else "interactive"
        prompt = Prompt(random.choice((10, 100, 1_000)), (), 16)
        request = PoolRequest(str(step), prompt, ANSWER, team, tier=tier)
        asked += 1
        if pool.dispatch_now(request, now) is not None:
            running[request.id] = False
        else:
            assert pool.submit(request, now) is None
        for each in random.sample(sorted(running), min(step % 2, len(running))):
            if running[each]:
                pool.ended(each, now)
                del running[each]
                served += 1
            else:
                pool.first_token(each, now)
                running[each] = True
        actions = pool.decide(now)
        assert len(actions) <= 3 * MAX_RUNNING
        for action in actions:
            if isinstance(action, Dispatch):
                running[action.request.id] = False
            elif isinstance(action, Yield):
                assert not running.pop(action.request), "its prompt was computed"
    assert served + len(running) + len(pool.queue) == asked
    for load in pool.loads:
        assert load.running == len(running)
