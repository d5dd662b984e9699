"""Who is above its share of what runs."""

from __future__ import annotations

from random import Random

from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler
from sluice.router.pool.shares import ACTIVE_SECONDS, TeamShares

MAX_RUNNING = 16


def test_a_team_that_is_alone_has_no_share_to_keep_to() -> None:
    shares = TeamShares()
    shares.asks("a", 1.0, 0.0)
    shares.count("a", 100)
    assert not shares.over("a")


def test_a_team_is_over_with_more_than_its_part_of_what_runs() -> None:
    shares = TeamShares()
    for team in "abcd":
        shares.asks(team, 1.0, 0.0)
    shares.count("a", 1)
    assert shares.over("a")  # of one that runs it has all
    shares.count("b", 3)
    assert not shares.over("a")
    assert shares.over("b")
    shares.count("b", -3)
    assert not shares.over("b")


def test_weights_make_larger_shares() -> None:
    shares = TeamShares()
    shares.asks("gold", 3.0, 0.0)
    shares.asks("tin", 1.0, 0.0)
    shares.count("gold", 3)
    shares.count("tin", 1)
    assert not shares.over("gold")
    assert not shares.over("tin")
    shares.count("tin", 1)
    assert shares.over("tin")


def test_who_asks_for_nothing_more_leaves_its_share_to_the_others() -> None:
    shares = TeamShares()
    shares.asks("b", 1.0, 0.0)
    shares.asks("a", 1.0, ACTIVE_SECONDS)
    shares.count("a", 4)
    assert shares.over("a")
    shares.asks("a", 1.0, ACTIVE_SECONDS + 0.1)
    assert not shares.over("a")


def test_the_newest_weight_counts() -> None:
    shares = TeamShares()
    shares.asks("a", 5.0, 0.0)
    shares.asks("b", 1.0, 0.0)
    shares.asks("a", 1.0, 0.1)
    shares.count("a", 2)
    shares.count("b", 1)
    assert shares.over("a")


def scheduler() -> PoolScheduler:
    made = PoolScheduler("g", PrefixLoad(Random(1)), BoundPolicy(ttft_target=2.0))
    made.join("r", ReplicaLimits(kv_blocks=10_000, block_tokens=16, max_running=MAX_RUNNING))
    return made


def ask(pool: PoolScheduler, team: str, number: int, now: float) -> list[str]:
    """Submit, and tell what was dispatched at once."""
    prompt = Prompt(10, (), 16)
    request = PoolRequest(f"{team}-{number}", prompt, output_tokens=10, team=team)
    if pool.submit(request, now) is not None:
        return []
    started = [each.request.id for each in pool.decide(now) if isinstance(each, Dispatch)]
    for request_id in started:
        pool.first_token(request_id, now)
    return started


def test_a_flood_leaves_room_for_the_others_and_none_where_it_is_alone() -> None:
    alone = scheduler()
    assert sum(len(ask(alone, "flood", n, 0.0)) for n in range(40)) == MAX_RUNNING
    pool = scheduler()
    assert ask(pool, "small", 0, 0.0) == ["small-0"]
    pool.ended("small-0", 0.0)
    assert sum(len(ask(pool, "flood", n, 0.0)) for n in range(40)) == 14
    # at once, though forty of the flood came before
    assert ask(pool, "small", 1, 0.1) == ["small-1"]
    assert ask(pool, "small", 2, 0.1) == ["small-2"]


def test_the_same_without_a_queue() -> None:
    pool = scheduler()
    asked = [
        PoolRequest(f"flood-{n}", Prompt(10, (), 16), output_tokens=10, team="flood")
        for n in range(40)
    ]
    small = PoolRequest("small", Prompt(10, (), 16), output_tokens=10, team="small")
    assert pool.dispatch_now(small, 0.0) is not None
    taken = 0
    for request in asked:
        if pool.dispatch_now(request, 0.0) is None:
            break
        pool.first_token(request.id, 0.0)
        taken += 1
    assert taken == 13  # and the one of the other team
