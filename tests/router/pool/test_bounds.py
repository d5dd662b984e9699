"""How much a replica may have outstanding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.bounds import BoundPolicy, ReplicaBound, ReplicaLimits
from sluice.router.pool.load import Load
from sluice.router.pool.rate import FadingRate

LIMITS = ReplicaLimits(
    kv_blocks=100,
    block_tokens=100,
    max_running=4,
    max_queued=2,
    prefill_rate=1_000,
    step_tokens=500,
)
POLICY = BoundPolicy(ttft_target=8.0, lead=0.1)


def bound(policy: BoundPolicy | None = POLICY) -> ReplicaBound:
    return ReplicaBound(LIMITS, policy)


def admits(
    load: Load, prefill: int = 100, context: int = 100, part: float = 1.0, now: float = 0.0
) -> bool:
    return bound().admits(load, prefill, context, part, now)


def test_an_idle_replica_takes_anything() -> None:
    assert admits(Load("a"), prefill=10**9, context=10**9, part=0.5)


def test_a_replica_without_weight_takes_nothing() -> None:
    assert not admits(Load("a", weight=0.0))


def test_sequences_are_limited() -> None:
    assert admits(Load("a", running=3))
    assert not admits(Load("a", running=4))


def test_the_kv_cache_is_limited() -> None:
    assert admits(Load("a", running=1, context_tokens=9_900))
    assert not admits(Load("a", running=1, context_tokens=9_901))


def test_the_prefill_queue_is_limited_by_seconds() -> None:
    assert admits(Load("a", 900, running=1))
    assert not admits(Load("a", 901, running=1))


def test_a_replica_gets_its_next_prompt_just_in_time() -> None:
    load = Load("a", 2_000, running=1)
    late = bound()
    late.began(10.0)
    assert late.opens(load) == 11.9
    assert not late.admits(load, 5_000, 100, 1.0, 11.8)
    assert late.admits(load, 5_000, 100, 1.0, 11.95)
    assert not late.admits(load, 5_000, 100, 0.5, 11.95)


def test_what_fills_the_slack_leaves_room() -> None:
    assert admits(Load("a", 150, running=1), part=0.5)
    assert not admits(Load("a", 151, running=1), part=0.5)
    assert not admits(Load("a", running=2), part=0.5)


def test_a_replica_that_re_enters_has_a_part_of_the_room() -> None:
    assert not admits(Load("a", 300, running=1, weight=0.3))
    assert not admits(Load("a", running=2, weight=0.3))


def test_without_a_policy_only_the_replicas_own_limits_count() -> None:
    free = bound(None)
    assert free.admits(Load("a", 10**9, running=5), 10**9, 10**9, 1.0, 0.0)
    assert not free.admits(Load("a", running=6), 1, 1, 1.0, 0.0)


def test_the_rate_is_learnt() -> None:
    learning = bound()
    now = 0.0
    for _ in range(50):
        learning.first_token(now + 1.0, now, 3_000)
        now += 1.0
    assert 2_800 < learning.prefill_rate < 3_000


def test_prompts_that_are_short_beside_a_step_say_nothing_of_the_rate() -> None:
    learning = bound()
    for now in range(1, 100):
        learning.first_token(float(now), now - 0.5, 20)
    assert learning.prefill_rate == LIMITS.prefill_rate


def test_first_tokens_that_come_together_count_once() -> None:
    learning = bound()
    for now in range(1, 100):
        for _ in range(4):
            learning.first_token(float(now), now - 1.0, 250)
    assert 950 < learning.prefill_rate < 1_050


def test_idle_time_is_not_slowness() -> None:
    learning = bound()
    for hour in range(50):
        learning.first_token(hour * 3_600 + 1.0, hour * 3_600.0, 1_000)
    assert 999 < learning.prefill_rate < 1_001


def test_misses_shorten_the_queue_and_punctuality_restores_it() -> None:
    learning = bound()
    whole = learning.queue_seconds
    learning.first_token(10.0, 1.0, 100)
    assert learning.queue_seconds == whole * 0.9
    learning.first_token(10.5, 2.0, 100)  # was sent before the decrease
    assert learning.queue_seconds == whole * 0.9
    for number in range(20):
        learning.first_token(11.0 + number, 10.5 + number, 100)
    assert learning.queue_seconds == whole


def test_a_prompt_that_is_long_by_itself_is_no_miss() -> None:
    learning = bound()
    learning.first_token(20.0, 0.0, 20_000)
    assert learning.queue_seconds == 1.0


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 30), st.integers(1, 100_000)), max_size=50)
)
def test_what_is_learnt_stays_within_reason(seen: list[tuple[float, float, int]]) -> None:
    learning, now = bound(), 0.0
    for gap, took, tokens in seen:
        now += gap
        learning.first_token(now, max(0.0, now - took), tokens)
        assert 0 < learning.prefill_rate < float("inf")
        assert 0.1 <= learning.queue_seconds <= 1.0
        assert learning.room >= LIMITS.step_tokens


def test_rates_fade() -> None:
    rate = FadingRate(assumed=10.0, memory=10.0)
    assert rate.value == 10.0
    rate.add(1_000.0, 100.0)
    assert 9.99 < rate.value < 10.01
    rate.add(2_000.0, 100.0)
    assert 19.9 < rate.value < 20.0
