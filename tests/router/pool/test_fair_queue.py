"""Who is next, who is refused, and what they are told."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.router.pool.fair_queue import (
    FairQueue,
    Priority,
    Queued,
    QueuePolicy,
    QueueRequest,
    Shed,
    Tier,
)

RATE = 1_000.0


def queue(rate: float = RATE, **policy: float) -> FairQueue:
    settled = {"credit": 0.0, **policy}
    made = FairQueue(QueuePolicy(**settled), rate)  # type: ignore[arg-type]
    made.expect(rate)
    return made


def request(
    key: str,
    team: str = "t",
    tokens: int = 100,
    *,
    priority: Priority = "normal",
    tier: Tier = "interactive",
    slo: float | None = None,
    weight: float = 1.0,
) -> QueueRequest:
    return QueueRequest(key, team, tokens, tokens, priority, tier, slo, weight)


def drain(waiting: FairQueue, now: float = 0.0) -> list[str]:
    """Everything that waits, in its order."""
    order = []
    while (taken := waiting.next(now, lambda _: True)) is not None:
        order.append(taken.id)
    return order


def accepted(waiting: FairQueue, *requests: QueueRequest, now: float = 0.0) -> FairQueue:
    for each in requests:
        assert isinstance(waiting.offer(each, now), Queued)
    return waiting


def test_one_team_is_served_by_arrival() -> None:
    waiting = accepted(queue(), *(request(key) for key in "abc"))
    assert drain(waiting) == ["a", "b", "c"]


def test_teams_take_turns() -> None:
    many = [request(f"m{number}", "many") for number in range(4)]
    waiting = accepted(queue(), *many, request("f0", "few"), request("f1", "few"))
    assert drain(waiting)[:4] in (["m0", "f0", "m1", "f1"], ["f0", "m0", "f1", "m1"])


def test_weights_are_shares() -> None:
    heavy = [request(f"h{number}", "heavy", weight=3.0) for number in range(30)]
    light = [request(f"l{number}", "light") for number in range(30)]
    first = drain(accepted(queue(), *heavy, *light))[:20]
    assert 14 <= sum(key.startswith("h") for key in first) <= 16


def test_output_counts_twice() -> None:
    waiting = accepted(queue(), request("a0", "a"))
    served = waiting.next(0.0, lambda _: True)
    assert served is not None
    waiting.finish(served, 50)
    assert waiting.counter("a") == 200.0


def test_nothing_can_be_saved_up() -> None:
    waiting = queue()
    for number in range(10):
        accepted(waiting, request(f"x{number}", "x"))
        drain(waiting)
    accepted(waiting, request("y", "y"))
    assert waiting.counter("y") == waiting.counter("x") > 0


def test_a_credit_lets_a_burst_pass() -> None:
    waiting = queue(credit=0.3)
    steady = [request(f"s{number}", "steady") for number in range(20)]
    accepted(waiting, *steady)
    for _ in range(10):
        waiting.next(0.0, lambda _: True)
    accepted(waiting, *(request(f"b{number}", "burst") for number in range(6)))
    assert [key[0] for key in drain(waiting)[:4]].count("b") >= 3


def test_higher_bands_pass() -> None:
    waiting = accepted(
        queue(),
        request("low", priority="low"),
        request("normal"),
        request("high", priority="high"),
    )
    assert drain(waiting) == ["high", "normal", "low"]


def test_waiting_lifts() -> None:
    waiting = accepted(queue(ageing=5.0), request("low", priority="low"))
    accepted(waiting, request("normal"), now=4.0)
    accepted(waiting, request("high", priority="high"), now=9.5)
    assert drain(waiting, now=4.9) == ["high", "normal", "low"]
    accepted(waiting, request("low", priority="low"), now=0.0)
    accepted(waiting, request("high", priority="high"), now=9.5)
    assert drain(waiting, now=10.0) == ["low", "high"]


def test_batch_comes_last_and_only_into_an_empty_queue() -> None:
    waiting = accepted(queue(), request("b", tier="batch"), request("i"))
    assert waiting.next(0.0, lambda each: each.tier == "batch") is None
    assert drain(waiting) == ["i", "b"]


def test_nothing_overtakes_the_one_that_does_not_fit() -> None:
    waiting = accepted(queue(), request("large", tokens=500), request("small", tokens=10))
    assert waiting.next(0.0, lambda each: each.work_tokens < 100) is None
    assert len(waiting) == 2


def test_who_leaves_is_not_served() -> None:
    waiting = accepted(queue(), request("a"), request("b"), request("c"))
    assert waiting.cancel("b")
    assert not waiting.cancel("b")
    assert drain(waiting) == ["a", "c"]


def test_who_comes_back_is_first_and_not_charged() -> None:
    waiting = accepted(queue(), request("a"), request("b"))
    taken = waiting.next(0.0, lambda _: True)
    assert taken is not None
    waiting.restore(taken, 1.0)
    assert waiting.counter("t") == 0.0
    assert drain(waiting) == ["a", "b"]


def test_who_comes_back_has_the_time_that_it_had() -> None:
    waiting = accepted(queue(), request("a", slo=2.0))
    taken = waiting.next(0.5, lambda _: True)
    assert taken is not None
    assert list(waiting.expired(1.0)) == []
    waiting.restore(taken, 1.0)
    assert list(waiting.expired(1.5)) == []
    assert [shed.request for shed in waiting.expired(2.0)] == ["a"]


def test_the_same_request_does_not_wait_twice() -> None:
    waiting = accepted(queue(), request("a"))
    with pytest.raises(ValueError, match="waits already"):
        waiting.offer(request("a"), 0.0)


def test_what_would_be_late_is_refused_with_a_true_time() -> None:
    waiting = accepted(queue(), *(request(f"{number}", tokens=1_000) for number in range(4)))
    refusal = waiting.offer(request("late", slo=2.0), 0.0)
    assert refusal == Shed("late", 3, "wait")
    served = waiting.next(1.0, lambda _: True)
    assert served is not None
    waiting.next(2.0, lambda _: True)
    waiting.next(3.0, lambda _: True)
    assert isinstance(waiting.offer(request("late", slo=2.0), 3.0), Queued)


def test_a_prompt_that_no_waiting_helps_is_taken_when_nothing_is_ahead() -> None:
    assert isinstance(queue().offer(request("a", slo=1.0), 0.0, service=5.0), Queued)


def test_a_full_queue_takes_no_more() -> None:
    waiting = accepted(queue(max_waiting=1), request("a", tokens=2_500))
    assert waiting.offer(request("b"), 0.0) == Shed("b", 3, "full")


def test_another_teams_queue_is_not_ones_own() -> None:
    waiting = accepted(queue(), *(request(f"{number}", "many", 1_000) for number in range(30)))
    assert isinstance(waiting.offer(request("f", "few", slo=2.0), 0.0), Queued)
    assert isinstance(waiting.offer(request("m", "many", slo=2.0), 0.0), Shed)


def test_whose_time_is_over_is_refused() -> None:
    waiting = accepted(queue(), request("a", tokens=1_000, slo=5.0), request("b", slo=9.0))
    assert list(waiting.expired(4.9)) == []
    assert waiting.expiry == 5.0
    assert [shed.request for shed in waiting.expired(5.0)] == ["a"]
    assert drain(waiting) == ["b"]
    assert waiting.expiry is None


def test_the_rate_is_what_leaves_while_others_wait() -> None:
    waiting = queue(rate=10_000.0)
    for number in range(60):
        accepted(waiting, request(f"{number}", tokens=500))
    for second in range(1, 50):
        waiting.next(float(second), lambda _: True)
    assert 500 <= waiting.rate < 600


# Properties.

teams = st.sampled_from(["a", "b", "c"])
sizes = st.integers(1, 500)


@given(st.lists(st.tuples(teams, sizes), min_size=1, max_size=60), st.integers(0, 1_000))
def test_teams_that_always_wait_differ_by_no_more_than_vtc_allows(
    sent: list[tuple[str, int]], seed: int
) -> None:
    """VTC's bound: twice the larger of one prompt and what is out at once."""
    random = Random(seed)
    waiting = queue()
    left = Counter[str]()
    for number, (team, tokens) in enumerate(sent):
        accepted(waiting, request(f"{number}", team, tokens))
        left[team] += 1
    served: Counter[str] = Counter()
    while all(left[team] for team in left):
        taken = waiting.next(0.0, lambda _: True)
        assert taken is not None
        output = random.randrange(300)
        waiting.finish(taken, output)
        served[taken.team] += taken.input_tokens + 2 * output
        left[taken.team] -= 1
        shares = [served[team] for team in left]
        assert max(shares) - min(shares) <= 2 * (500 + 2 * 300)


entries = st.lists(
    st.tuples(
        teams,
        sizes,
        st.sampled_from(["high", "normal", "low"]),
        st.sampled_from(["interactive", "batch"]),
    ),
    max_size=40,
)


@given(entries)
def test_it_never_idles_and_loses_nobody(sent: list[tuple[str, int, Priority, Tier]]) -> None:
    waiting = queue()
    for number, (team, tokens, priority, tier) in enumerate(sent):
        accepted(waiting, request(f"{number}", team, tokens, priority=priority, tier=tier))
    order = drain(waiting)
    assert sorted(order) == sorted(f"{number}" for number in range(len(sent)))
    tiers = [sent[int(key)][3] for key in order]
    assert tiers == sorted(tiers, reverse=True)


@given(st.sampled_from(["normal", "low"]), st.integers(0, 100))
@settings(max_examples=30)
def test_nothing_starves(priority: Priority, seed: int) -> None:
    """However many urgent requests of others keep coming, each is served at last."""
    random = Random(seed)
    waiting = queue(ageing=5.0)
    accepted(waiting, request("patient", "patient", 100, priority=priority))
    for second in range(200):
        now = float(second)
        for number in range(2):
            urgent = request(f"{second}-{number}", "urgent", random.randrange(50, 500),
                             priority="high")  # fmt: skip
            accepted(waiting, urgent, now=now)
        taken = waiting.next(now, lambda _: True)
        assert taken is not None
        if taken.id == "patient":
            assert now <= 12.0
            return
    pytest.fail("it starved")


@given(st.lists(st.tuples(st.sampled_from(["offer", "next", "cancel", "restore"]), teams, sizes)))
def test_its_sums_stay_right(done: list[tuple[str, str, int]]) -> None:
    """Work, counts and order against a list."""
    waiting = queue()
    inside: dict[str, QueueRequest] = {}
    out: list[QueueRequest] = []
    for number, (operation, team, tokens) in enumerate(done):
        if operation == "offer":
            each = request(f"{number}", team, tokens)
            accepted(waiting, each)
            inside[each.id] = each
        elif operation == "next":
            taken = waiting.next(0.0, lambda _: True)
            assert (taken is None) == (not inside)
            if taken is not None:
                out.append(inside.pop(taken.id))
                assert out[-1] == taken
        elif operation == "cancel" and inside:
            key = next(iter(inside))
            assert waiting.cancel(key)
            del inside[key]
        elif operation == "restore" and out:
            back = out.pop()
            waiting.restore(back, 0.0)
            inside[back.id] = back
        assert len(waiting) == len(inside)
        probe = waiting.offer(request("probe", "new", 1, slo=1e9), 0.0)
        assert isinstance(probe, Queued)
        waiting.cancel("probe")
    assert sorted(drain(waiting)) == sorted(inside)


@given(st.lists(sizes, min_size=1, max_size=30), st.floats(0.5, 5.0))
def test_after_the_time_told_one_is_taken(queued: list[int], slo: float) -> None:
    waiting = queue()
    for number, tokens in enumerate(queued):
        accepted(waiting, request(f"{number}", tokens=tokens))
    outcome = waiting.offer(request("late", slo=slo), 0.0)
    if not isinstance(outcome, Shed):
        return
    now = 0.0
    for tokens in queued:  # the pool works through it at the rate that it is known for
        if now > outcome.retry_after:
            break
        waiting.next(now, lambda _: True)
        now += tokens / RATE
    assert isinstance(waiting.offer(request("late", slo=slo), float(outcome.retry_after)), Queued)
