"""Which replica, by which policy."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.load import Load
from sluice.router.pool.placement import (
    POLICIES,
    ConsistentHash,
    LeastLoaded,
    Placement,
    PolicyName,
    PrefixLoad,
    Prompt,
    RoundRobin,
)

PROMPT = Prompt(1_000, tuple(range(10)), 100)

loads = st.builds(
    Load,
    replica=st.text("abcdef", min_size=1, max_size=3),
    queued_prefill_tokens=st.integers(0, 5_000),
    running=st.integers(0, 5),
    context_tokens=st.integers(0, 10_000),
    weight=st.sampled_from([0.1, 0.5, 1.0]),
    free_blocks=st.integers(0, 12),
)
candidates = st.lists(loads, min_size=1, max_size=6, unique_by=lambda load: load.replica)
depths = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 10))


def prefix_load(**options: float) -> PrefixLoad:
    return PrefixLoad(Random(1), **options)


@pytest.mark.parametrize("name", POLICIES)
@given(candidates=candidates, depths=depths, tokens=st.integers(1, 2_000))
def test_every_policy_chooses_a_candidate_and_says_what_it_has(
    name: PolicyName, candidates: list[Load], depths: dict[str, int], tokens: int
) -> None:
    prompt = Prompt(tokens, tuple(range(10)), 100)
    decision = POLICIES[name](Random(1)).place(prompt, candidates, depths)
    assert decision.replica in {load.replica for load in candidates}
    assert decision.cached_blocks == depths.get(decision.replica, 0)
    assert decision.uncached_tokens == prompt.uncached(decision.cached_blocks) >= 1


@given(candidates, depths)
def test_prefix_load_has_the_least_cost(candidates: list[Load], depths: dict[str, int]) -> None:
    def cost(load: Load) -> float:
        uncached = PROMPT.uncached(depths.get(load.replica, 0))
        evicted = max(0, uncached - 100 * load.free_blocks)
        return (uncached + 0.25 * evicted + 0.5 * load.queued_prefill_tokens) / load.weight

    chosen = prefix_load().place(PROMPT, candidates, depths).replica
    by_name = {load.replica: load for load in candidates}
    assert cost(by_name[chosen]) == min(map(cost, candidates))


def test_prefix_load_follows_the_prefix_until_the_queue_is_too_long() -> None:
    warm, cold = Load("warm"), Load("cold")
    decision = prefix_load().place(PROMPT, [warm, cold], {"warm": 8})
    assert (decision.replica, decision.reason, decision.uncached_tokens) == ("warm", "prefix", 200)
    warm.queued_prefill_tokens = 2_100
    decision = prefix_load().place(PROMPT, [warm, cold], {"warm": 8})
    assert (decision.replica, decision.reason) == ("cold", "load")


def test_prefix_load_knows_when_nobody_has_anything() -> None:
    busy, idle = Load("busy", running=2), Load("idle")
    decision = prefix_load().place(PROMPT, [busy, idle], {})
    assert (decision.replica, decision.reason) == ("idle", "no_prefix")


def test_prefix_load_warms_cold_caches_before_it_evicts() -> None:
    full, cold = Load("full"), Load("cold", running=1, free_blocks=50)
    assert prefix_load().place(PROMPT, [full, cold], {"full": 1}).replica == "cold"
    assert prefix_load().place(PROMPT, [full, cold], {"full": 4}).replica == "full"


def test_prefix_load_may_count_running_requests() -> None:
    busy, idle = Load("busy", running=4), Load("idle")
    policy = prefix_load(request_tokens=300.0)
    assert policy.place(PROMPT, [busy, idle], {"busy": 9}).replica == "idle"


def test_a_replica_that_re_enters_gets_little() -> None:
    returning, others = Load("returning", weight=0.1), Load("other", queued_prefill_tokens=1_000)
    assert prefix_load().place(PROMPT, [returning, others], {}).replica == "other"


def test_least_loaded_looks_at_prefill_first() -> None:
    one, other = Load("one", 10, running=1), Load("other", 5, running=9)
    assert LeastLoaded(Random(1)).place(PROMPT, [one, other], {"one": 10}).replica == "other"


def test_round_robin_goes_on_where_replicas_come_and_go() -> None:
    policy = RoundRobin()
    a, b, c = (Load(name) for name in "abc")
    turns = [policy.place(PROMPT, [a, b, c], {}).replica for _ in range(4)]
    assert turns == ["a", "b", "c", "a"]
    assert policy.place(PROMPT, [a, c], {}).replica == "c"
    assert policy.place(PROMPT, [a, c], {}).replica == "a"


def keyed(first: int, second: int, rest: int = 0) -> Prompt:
    return Prompt(300, (first, second, rest), 100)


def ring() -> ConsistentHash:
    return ConsistentHash(Random(1))


def test_gateways_that_share_nothing_agree_on_the_hash() -> None:
    fleet = [Load(f"r{number}") for number in range(8)]
    for key in range(50):
        places = {
            ring().place(keyed(1, key, rest), order, {}).replica
            for rest, order in enumerate((fleet, fleet[::-1]))
        }
        assert len(places) == 1


def test_a_replica_that_leaves_moves_only_its_own_keys() -> None:
    fleet = [Load(f"r{number}") for number in range(8)]
    policy = ring()
    before = [policy.place(keyed(1, key), fleet, {}).replica for key in range(200)]
    after = [policy.place(keyed(1, key), fleet[1:], {}).replica for key in range(200)]
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert moved
    assert {one for one, _ in moved} == {"r0"}


def test_bounded_loads_stay_bounded() -> None:
    fleet = [Load(f"r{number}") for number in range(8)]
    policy = ring()
    reasons = Counter[str]()
    for _ in range(80):
        decision = policy.place(keyed(1, 1), fleet, {})
        reasons[decision.reason] += 1
        next(load for load in fleet if load.replica == decision.replica).running += 1
    assert max(load.running for load in fleet) <= -(-80 * 1.25 // 8)
    assert reasons["spill"]


def test_the_ring_forgets_those_that_never_return() -> None:
    policy: Placement = ring()
    for number in range(100):
        fleet = [Load(f"r{number}-{each}") for each in range(2)]
        assert policy.place(keyed(1, number), fleet, {}).replica.startswith(f"r{number}-")
    assert isinstance(policy, ConsistentHash)
    assert len(policy._members) <= 14


def test_without_a_full_block_the_lightest_is_taken() -> None:
    prompt = Prompt(50, (), 100)
    assert ring().place(prompt, [Load("a", running=1), Load("b")], {}).replica == "b"


def test_ties_are_drawn_by_the_seed() -> None:
    fleet = [Load(f"r{number}") for number in range(8)]

    def drawn(seed: int) -> list[str]:
        policy = PrefixLoad(Random(seed))
        return [policy.place(PROMPT, fleet, {}).replica for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
