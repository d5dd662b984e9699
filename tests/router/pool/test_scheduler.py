"""One gateway's decisions, put together."""

from __future__ import annotations

from random import Random

from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.fair_queue import QueuePolicy, Shed, Tier
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import Action, Dispatch, PoolRequest, PoolScheduler, Yield

LIMITS = ReplicaLimits(kv_blocks=1_000, block_tokens=100, max_running=4, step_tokens=500)
BOUNDS = BoundPolicy(ttft_target=2.0)


def pool(
    name: str = "g1",
    *,
    replicas: int = 2,
    bounds: BoundPolicy | None = BOUNDS,
    hint_seconds: float = 0.0,
) -> PoolScheduler:
    made = PoolScheduler(
        name, PrefixLoad(Random(1)), bounds, QueuePolicy(), hint_seconds=hint_seconds
    )
    for number in range(replicas):
        made.join(f"r{number}", LIMITS)
    return made


def request(
    key: str,
    start: int = 0,
    blocks: int = 20,
    *,
    tier: Tier = "interactive",
    team: str = "t",
    slo: float | None = None,
) -> PoolRequest:
    """Its prompt shares blocks with those that have the same start."""
    prompt = Prompt(blocks * 100, tuple(range(start, start + blocks)), 100)
    return PoolRequest(key, prompt, 100, team, tier=tier, slo=slo)


def send(scheduler: PoolScheduler, *requests: PoolRequest, now: float = 0.0) -> list[Action]:
    for each in requests:
        assert scheduler.submit(each, now) is None
    return scheduler.decide(now)


def replica_of(action: Action) -> str:
    assert isinstance(action, Dispatch)
    return action.decision.replica


def test_a_conversation_stays_where_its_prefix_is() -> None:
    scheduler = pool()
    (first,) = send(scheduler, request("a"))
    scheduler.first_token("a", 0.3)
    scheduler.ended("a", 0.5)
    (second,) = send(scheduler, request("b", blocks=30), now=1.0)
    assert replica_of(first) == replica_of(second)
    assert isinstance(second, Dispatch)
    assert (second.decision.reason, second.decision.uncached_tokens) == ("prefix", 1_000)


def test_a_request_counts_until_its_end_and_once() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, request("a"))
    load = scheduler.loads["r0"]
    assert (load.queued_prefill_tokens, load.running, load.context_tokens) == (2_000, 1, 2_100)
    for _ in range(2):
        scheduler.first_token("a", 0.3)
        scheduler.assume_first_token("a")
        assert (load.queued_prefill_tokens, load.running) == (0, 1)
    for _ in range(2):
        scheduler.ended("a", 0.5)
        assert (load.queued_prefill_tokens, load.running, load.context_tokens) == (0, 0, 0)


def test_what_has_no_room_waits_and_goes_when_there_is() -> None:
    scheduler = pool(replicas=1)
    assert [type(each) for each in send(scheduler, request("a"), request("b", 1_000))] == [Dispatch]
    assert "b" in scheduler.queue
    scheduler.first_token("a", 0.3)
    (action,) = scheduler.decide(0.3)
    assert isinstance(action, Dispatch)
    assert action.request.id == "b"


def test_it_says_when_to_ask_again() -> None:
    scheduler = pool(replicas=1)
    assert scheduler.wake() is None
    send(scheduler, request("a"), request("b", 1_000))
    wake = scheduler.wake()
    assert wake is not None
    assert 0.23 < wake < 0.25  # 2,000 tokens at 8,000 a second, a moment before the end
    assert [type(each) for each in scheduler.decide(wake)] == [Dispatch]


def test_what_cannot_be_in_time_is_refused() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, *(request(f"{number}", number * 1_000) for number in range(20)))
    refusal = scheduler.submit(request("late", 50_000, slo=1.0), 0.0)
    assert isinstance(refusal, Shed)
    assert 1 <= refusal.retry_after <= 6


def test_what_is_late_after_all_is_refused() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, request("a", blocks=200))
    assert send(scheduler, request("b", 1_000, slo=1.0)) == []
    assert scheduler.wake() is not None
    actions = scheduler.decide(1.0)
    assert [type(each) for each in actions] == [Shed]
    assert "b" not in scheduler.queue


def test_batch_yields_at_once() -> None:
    scheduler = pool(replicas=1)
    (batch,) = send(scheduler, request("batch", tier="batch"))
    assert isinstance(batch, Dispatch)
    actions = send(scheduler, request("urgent", 1_000), now=0.1)
    assert [type(each) for each in actions] == [Yield, Dispatch]
    assert actions[0] == Yield("batch", "r0")
    assert "batch" in scheduler.queue
    scheduler.first_token("urgent", 0.3)
    scheduler.ended("urgent", 0.4)
    (again,) = scheduler.decide(0.4)
    assert isinstance(again, Dispatch)
    assert again.request.id == "batch"


def test_the_youngest_and_the_fewest_yield() -> None:
    scheduler = pool(replicas=1)
    small = [request(f"b{number}", number * 100, 1, tier="batch") for number in range(3)]
    assert len(send(scheduler, *small)) == 3
    yields = send(scheduler, request("urgent", 1_000, 3), request("second", 2_000, 1), now=0.1)
    assert [each.request for each in yields if isinstance(each, Yield)] == ["b2"]


def tell(one: PoolScheduler, other: PoolScheduler, now: float) -> None:
    for hint in one.take_hints():
        other.receive(hint, now)


def test_batch_yields_to_who_waits_at_another_gateway() -> None:
    worker, door = pool("worker", replicas=1), pool("door", replicas=1)
    small = [request(f"b{number}", number * 100, 1, tier="batch") for number in range(3)]
    assert len(send(worker, *small)) == 3
    tell(worker, door, 0.0)
    send(door, request("first", 1_000, 1))
    assert send(door, request("urgent", 2_000, 1), now=0.1) == []  # four run
    tell(door, worker, 0.15)
    assert [each for each in worker.decide(0.15)] == [Yield("b2", "r0")]
    assert worker.dispatch_now(request("b3", 300, 1, tier="batch"), 0.15) is None
    assert worker.decide(0.2) == []  # nothing passes who waits elsewhere
    tell(worker, door, 0.2)
    assert [type(each) for each in door.decide(0.2)] == [Dispatch]
    tell(door, worker, 0.25)
    door.ended("first", 0.3)
    door.ended("urgent", 0.3)
    tell(door, worker, 0.35)
    (again,) = worker.decide(0.35)
    assert isinstance(again, Dispatch)
    assert again.request.id == "b2"


def test_batch_does_not_yield_to_batch() -> None:
    scheduler = pool(replicas=1)
    actions = send(scheduler, request("a", tier="batch"), request("b", 1_000, tier="batch"))
    assert [type(each) for each in actions] == [Dispatch]


def test_who_leaves_is_taken_back_from_where_it_is() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, request("a"), request("b", 1_000))
    assert scheduler.cancel("b", 0.1) is None
    assert scheduler.cancel("a", 0.1) == "r0"
    assert scheduler.cancel("a", 0.1) is None
    assert scheduler.loads["r0"].running == 0
    assert scheduler.decide(0.2) == []


def test_what_was_not_computed_is_not_believed() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, request("a"))
    assert scheduler.index.depth("r0", tuple(range(20))) == 20
    scheduler.cancel("a", 0.1)
    assert scheduler.index.depth("r0", tuple(range(20))) == 0


def test_the_engines_word_corrects_the_index() -> None:
    scheduler = pool(replicas=1)
    send(scheduler, request("a"))
    scheduler.first_token("a", 0.3, cached_tokens=0)
    scheduler.ended("a", 0.4)
    before = scheduler.index.capacity("r0")
    send(scheduler, request("b", blocks=21), now=1.0)
    scheduler.first_token("b", 1.3, cached_tokens=300)
    assert scheduler.index.capacity("r0") < before
    assert scheduler.index.depth("r0", tuple(range(21))) == 21


def test_a_last_block_that_is_computed_again_is_no_error() -> None:
    scheduler = pool(replicas=1)
    for number in range(5):
        send(scheduler, request(f"{number}"), now=float(number))
        scheduler.first_token(f"{number}", number + 0.3, cached_tokens=1_900 if number else 0)
        scheduler.ended(f"{number}", number + 0.4)
    assert scheduler.index.capacity("r0") == 1_000


def test_a_replica_that_left_gets_nothing() -> None:
    scheduler = pool()
    (action,) = send(scheduler, request("a"))
    gone = replica_of(action)
    scheduler.leave(gone)
    scheduler.leave(gone)
    scheduler.first_token("a", 0.1)
    scheduler.ended("a", 0.1)
    (action,) = send(scheduler, request("b"), now=0.2)
    assert replica_of(action) != gone


def test_a_drained_replica_gets_nothing() -> None:
    scheduler = pool()
    scheduler.weigh("r0", 0.0)
    places = {
        replica_of(each)
        for each in send(scheduler, *(request(f"{number}", number, 1) for number in range(4)))
    }
    assert places == {"r1"}


def test_without_replicas_everything_waits() -> None:
    scheduler = pool(replicas=0)
    assert send(scheduler, request("a", slo=1.0), request("b")) == []
    scheduler.join("r0", LIMITS)
    assert len(scheduler.decide(0.1)) >= 1


def exchange(sender: PoolScheduler, receiver: PoolScheduler, now: float) -> None:
    for hint in sender.take_hints():
        receiver.receive(hint, now)


def test_gateways_tell_each_other_of_loads_and_prefixes() -> None:
    one, other = pool("g1"), pool("g2")
    (action,) = send(one, request("a"))
    exchange(one, other, 0.1)
    assert one.take_hints() == []
    where = replica_of(action)
    assert other.loads[where].queued_prefill_tokens == 2_000
    assert other.index.depth(where, tuple(range(20))) == 20
    one.first_token("a", 0.3)
    one.ended("a", 0.5)
    exchange(one, other, 0.6)
    assert other.loads[where].running == 0


def test_who_knows_first_of_room_leaves_others_their_share() -> None:
    one, other = pool("g1", replicas=2), pool("g2", replicas=2)
    mine = [request(f"m{number}", number * 100) for number in range(4)]
    assert len(send(one, *mine)) == 2
    exchange(one, other, 0.1)
    assert send(other, request("theirs", 9_000), now=0.1) == []
    exchange(other, one, 0.15)
    one.first_token("m0", 0.25)
    assert one.decide(0.25) == []
    exchange(one, other, 0.25)
    assert len(other.decide(0.25)) == 1


def test_long_prompts_wait_for_their_turn_among_gateways() -> None:
    one, other = pool("g1", hint_seconds=0.05), pool("g2", hint_seconds=0.05)
    for scheduler in (one, other):
        scheduler.announce(0.0)
    exchange(one, other, 0.0)
    exchange(other, one, 0.0)
    long = request("long", blocks=100)
    assert len(send(one, long)) == 1
    assert send(other, long) == []
    turn = other.wake()
    assert turn is not None
    assert 0.06 < turn < 0.07
    assert len(other.decide(turn)) == 1
    assert other.submit(request("left", 5_000, 100), turn + 0.06) is None
    assert other.cancel("left", turn + 0.06) is None
    assert other.wake() is None


def test_many_rounds_leave_nothing_behind() -> None:
    scheduler, random = pool(replicas=3), Random(7)
    running: list[str] = []
    for number in range(600):
        now = number * 0.05
        tier: Tier = "batch" if random.random() < 0.3 else "interactive"
        slo = 2.0 if tier == "interactive" else None
        scheduler.submit(request(f"{number}", random.randrange(50) * 100, tier=tier, slo=slo), now)
        if running and random.random() < 0.1:
            left = running.pop(random.randrange(len(running)))
            scheduler.cancel(left, now)
        for action in scheduler.decide(now):
            if isinstance(action, Dispatch):
                running.append(action.request.id)
            elif isinstance(action, Yield):
                running.remove(action.request)
        if running and random.random() < 0.9:
            done = running.pop(0)
            scheduler.first_token(done, now, cached_tokens=0)
            scheduler.generated(done, 10)
            scheduler.ended(done, now)
    now = 1_000.0
    while running or len(scheduler.queue):
        for done in running:
            scheduler.ended(done, now)
        running = [each.request.id for each in scheduler.decide(now) if isinstance(each, Dispatch)]
        now += 1.0
    for load in scheduler.loads:
        assert (load.queued_prefill_tokens, load.running, load.context_tokens) == (0, 0, 0)
    assert scheduler.wake() is None


def test_what_changed_is_told_in_few_words() -> None:
    one = pool("g1", replicas=1)
    first = send(one, *(request(f"short{number}", number * 100, 0) for number in range(3)))
    assert len(first) == 3
    send(one, request("long", 1_000, 2))
    one.first_token("short0", 0.1)
    one.ended("short0", 0.2)
    (hint,) = one.take_hints()
    assert (len(hint.hashes), hint.running) == (2, 3)
    one.ended("short1", 0.3)
    one.ended("short2", 0.3)
    (hint,) = one.take_hints()
    assert (hint.hashes, hint.running) == ((), 1)
    one.leave("r0")
    assert one.take_hints() == []
