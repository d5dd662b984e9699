"""The engine under every load that hypothesis makes up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.backends.engine import Engine, EngineConfig, EngineRequest, Policy, Refusal
from tests.backends.engine.reference import ReferenceEngine
from tests.backends.engine.replay import PACE, Action, configs, loads, replay

data = st.data()
thorough = settings(max_examples=100, deadline=None)


@thorough
@given(data, configs())
def test_it_does_what_the_reference_does_step_by_step(
    data: st.DataObject, config: EngineConfig
) -> None:
    actions = data.draw(loads(config))
    ours = replay(Engine(config, one_by_one=True), actions)
    theirs = replay(ReferenceEngine(config), actions)
    assert ours == theirs


@thorough
@given(data, configs())
def test_many_steps_at_once_end_as_one_by_one(data: st.DataObject, config: EngineConfig) -> None:
    actions = data.draw(loads(config))
    at_once, one_by_one = Engine(config), Engine(config, one_by_one=True)
    fast, slow = replay(at_once, actions), replay(one_by_one, actions)
    assert (fast.first(), fast.finished()) == (slow.first(), slow.finished())
    assert (fast.refused, fast.aborted) == (slow.refused, slow.aborted)
    assert at_once.counters == one_by_one.counters
    assert sum(step.steps for step in fast.steps) == sum(step.steps for step in slow.steps)


@thorough
@given(data, configs())
def test_blocks_are_conserved_and_shared_rightly(data: st.DataObject, config: EngineConfig) -> None:
    engine = Engine(config)
    replay(engine, data.draw(loads(config)), lambda: check_blocks(engine))
    assert engine.kv_cache_usage_perc == 0
    assert (engine.num_requests_running, engine.num_requests_waiting) == (0, 0)
    assert engine.queued_tokens == 0


def check_blocks(engine: Engine) -> None:
    """Free and used make up the whole; who shares a block has the same content in it."""
    pool = engine._cache.pool
    users: Counter[int] = Counter()
    contents: dict[int, object] = {}
    for progress in engine._scheduler.running:
        users.update(progress.blocks)
        for index, block in enumerate(progress.blocks):
            content = progress.hash(index) if index < progress.hashed else (progress.number, index)
            assert contents.setdefault(block, content) == content
    assert pool.free + len(users) == pool.size
    assert all(pool.references(block) == users[block] for block in range(pool.size))
    assert pool.cached <= pool.size


@thorough
@given(data, configs())
def test_all_that_stay_get_their_whole_answer(data: st.DataObject, config: EngineConfig) -> None:
    actions = data.draw(loads(config))
    engine = Engine(config)
    log = replay(engine, actions)
    finished = log.finished()
    for request in (action.request for action in actions if action.request):
        if request.id in log.refused:
            assert log.tokens(request.id) == 0
        elif request.id in log.aborted:
            assert log.tokens(request.id) < request.output_tokens
        else:
            assert log.tokens(request.id) == request.output_tokens
            assert request.id in finished
    counters = engine.counters
    counted = sum(counters.request_success.values()) + sum(counters.admission_rejections.values())
    too_long = sum(reason is Refusal.TOO_LONG for reason in log.refused.values())
    assert counted + too_long == sum(action.request is not None for action in actions)
    assert counters.request_success["abort"] == len(log.aborted)


@thorough
@given(data, configs(Policy.FCFS, capped=False))
def test_first_come_first_served(data: st.DataObject, config: EngineConfig) -> None:
    actions = data.draw(loads(config, aborts=False))
    log = replay(Engine(config), actions)
    first = log.first()
    order = [first[action.id] for action in actions if action.id not in log.refused]
    assert order == sorted(order)


@thorough
@given(data, configs())
def test_a_hit_is_of_what_came_before_under_the_same_salt(
    data: st.DataObject, config: EngineConfig
) -> None:
    actions = data.draw(loads(config))
    engine = Engine(config)
    log = replay(engine, actions)
    cached = log.cached()
    before: set[object] = set()
    for request in (action.request for action in actions if action.request):
        found = cached.get(request.id, 0)
        blocks = found // config.block_size
        assert found == blocks * config.block_size < request.prompt_tokens
        assert config.prefix_caching or not found
        keys = [(request.salt, key) for key in request.hashes]
        # Under `priority`, a later one may have gone first.
        if config.policy is Policy.FCFS:
            assert before.issuperset(keys[:blocks])
        before.update(keys)
    assert engine.counters.prefix_cache_hits <= engine.counters.prefix_cache_queries


@settings(max_examples=50, deadline=None)
@given(data, configs())
def test_the_same_again_is_the_same(data: st.DataObject, config: EngineConfig) -> None:
    actions = data.draw(loads(config))
    assert replay(Engine(config), actions) == replay(Engine(config), actions)


def request(number: int, prompt: int, output: int, at: float = 0.0, **more: object) -> Action:
    asked = EngineRequest(str(number), prompt, output, arrival=at, **more)  # type: ignore[arg-type]
    return Action(at, str(number), asked)


def test_a_prompt_is_computed_in_chunks_beside_running_answers() -> None:
    config = EngineConfig(num_blocks=100, block_size=4, max_num_batched_tokens=8, pace=PACE)
    log = replay(Engine(config), [request(0, 4, 10), request(1, 20, 1, at=PACE.floor_seconds)])
    alone, first, second, third, *_ = log.steps[1:]
    assert [output.id for output in alone.outputs] == ["0"]
    # One token for the answer leaves 7 of the 8: the prompt takes three steps.
    assert [len(step.outputs) for step in (first, second, third)] == [1, 1, 2]


def test_the_last_to_come_loses_its_blocks_and_finishes_all_the_same() -> None:
    config = EngineConfig(num_blocks=4, block_size=4, max_num_batched_tokens=8, pace=PACE)
    log = replay(Engine(config), [request(0, 4, 9), request(1, 4, 9)])
    assert log.preempted() == {"1"}
    assert (log.tokens("0"), log.tokens("1")) == (9, 9)
    assert log.finished()["0"] < log.finished()["1"]


def test_who_lost_its_blocks_is_next() -> None:
    config = EngineConfig(
        num_blocks=4, block_size=4, max_num_seqs=2, max_num_batched_tokens=8, pace=PACE
    )
    log = replay(Engine(config), [request(number, 4, 9) for number in range(3)])
    assert "1" in log.preempted()
    # There would be a block for the third before the second finds all of its own.
    assert log.finished()["0"] < log.first()["2"]


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_who_waited_behind_one_that_leaves_begins_with_the_next_step(
    policy: Policy, one_by_one: bool
) -> None:
    config = EngineConfig(num_blocks=4, block_size=4, policy=policy, pace=PACE)
    floor = PACE.floor_seconds
    log = replay(
        Engine(config, one_by_one),
        [
            request(0, 4, 9),
            request(1, 16, 1, at=floor / 2),
            request(2, 4, 1, at=floor / 2),
            Action(5 * floor / 2, "1", None),
        ],
    )
    # The second finds no room beside the first, and lets nobody past.
    start = next(step.start for step in log.steps for output in step.outputs if output.id == "2")
    assert start == 3 * floor


def test_the_least_important_loses_its_blocks_under_priority() -> None:
    config = EngineConfig(
        num_blocks=4, block_size=4, max_num_batched_tokens=8, policy=Policy.PRIORITY, pace=PACE
    )
    log = replay(Engine(config), [request(0, 4, 9, priority=1), request(1, 4, 9, priority=0)])
    assert log.preempted() == {"0"}


def test_priority_is_for_places_that_are_free() -> None:
    config = EngineConfig(max_num_seqs=1, policy=Policy.PRIORITY, pace=PACE)
    log = replay(
        Engine(config),
        [request(0, 4, 9), request(1, 4, 9), request(2, 4, 9, at=PACE.floor_seconds, priority=-1)],
    )
    finished = log.finished()
    assert finished["0"] < finished["2"] < finished["1"]


def test_a_whole_prompt_in_the_cache_leaves_its_last_token_to_compute() -> None:
    config = EngineConfig(num_blocks=100, block_size=4, pace=PACE)
    hashes = ["a", "ab", "abc"]
    log = replay(
        Engine(config), [request(0, 12, 1, hashes=hashes), request(1, 12, 1, at=9, hashes=hashes)]
    )
    assert log.cached() == {"0": 0, "1": 8}


def test_the_least_recently_used_blocks_are_forgotten_first() -> None:
    config = EngineConfig(num_blocks=6, block_size=4, pace=PACE)
    a, b, c = ["a", "aa"], ["b", "bb"], ["c", "cc", "ccc"]
    log = replay(
        Engine(config),
        [
            request(0, 8, 1, at=0, hashes=a),
            request(1, 8, 1, at=10, hashes=b),
            request(2, 9, 1, at=20, hashes=a),
            request(3, 12, 1, at=30, hashes=c),
            request(4, 9, 1, at=40, hashes=a),
            request(5, 9, 1, at=50, hashes=b),
        ],
    )
    assert log.cached() == {"0": 0, "1": 0, "2": 8, "3": 0, "4": 8, "5": 0}


def test_an_answer_is_found_by_the_next_turn_that_repeats_it() -> None:
    config = EngineConfig(num_blocks=100, block_size=4, pace=PACE)
    log = replay(
        Engine(config),
        [
            request(0, 5, 8, hashes=["a", "ab", "abc"]),
            request(1, 14, 1, at=99, hashes=["a", "ab", "abc"]),
        ],
    )
    assert log.cached()["1"] == 12


def test_a_full_queue_refuses() -> None:
    config = EngineConfig(max_num_queued_reqs=2, max_num_queued_tokens=10, pace=PACE)
    engine = Engine(config)
    asked = [EngineRequest(str(number), 6, 5) for number in range(3)]
    assert [engine.submit(each, 0) for each in asked] == [None, None, Refusal.MAX_NUM_QUEUED_REQS]
    assert engine.abort("1", 0)
    assert engine.submit(asked[1], 0) is None
    assert engine.abort("0", 0)
    assert engine.submit(EngineRequest("3", 6, 5), 0) is None
    assert engine.submit(EngineRequest("4", 6, 5), 0) is Refusal.MAX_NUM_QUEUED_REQS
    assert engine.counters.admission_rejections == {
        "max_num_queued_reqs": 2,
        "max_num_queued_tokens": 0,
    }


def test_queued_prompt_tokens_refuse() -> None:
    engine = Engine(EngineConfig(max_num_queued_tokens=10, pace=PACE))
    assert engine.submit(EngineRequest("0", 10, 5), 0) is None
    assert engine.submit(EngineRequest("1", 1, 5), 0) is Refusal.MAX_NUM_QUEUED_TOKENS
    engine.step(0)
    assert engine.due is not None
    engine.step(engine.due)
    assert engine.submit(EngineRequest("1", 1, 5), engine.due) is None


def test_what_can_never_run_is_refused_at_once() -> None:
    engine = Engine(EngineConfig(num_blocks=2, block_size=4, pace=PACE))
    assert engine.submit(EngineRequest("0", 8, 2), 0) is Refusal.TOO_LONG
    assert engine.submit(EngineRequest("1", 8, 1), 0) is None
