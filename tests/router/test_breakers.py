"""Breakers and cooldowns on a simulated clock."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.router.breakers import BreakerConfig, Breakers, Permit, Rest, State

CONFIG = BreakerConfig(
    window=30, min_calls=10, failure_ratio=0.5, open_seconds=15, max_cooldown=300
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Seen:
    """Remembers what breakers report; see `BreakerObserver`."""

    def __init__(self) -> None:
        self.moves: list[tuple[State, State]] = []
        self.cooldowns: list[tuple[str, float, bool]] = []

    def breaker_changed(self, name: str, old: State, new: State) -> None:
        self.moves.append((old, new))

    def cooldown_set(self, name: str, seconds: float, limited: bool) -> None:
        self.cooldowns.append((name, seconds, limited))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def breakers(clock: Clock, seen: Seen) -> Breakers:
    return Breakers(CONFIG, seen, clock)


def begin(breakers: Breakers, name: str = "d") -> Permit:
    permit = breakers.begin(name)
    assert permit is not None
    return permit


def fail(breakers: Breakers, times: int = 1) -> None:
    for _ in range(times):
        begin(breakers).failed()


def succeed(breakers: Breakers, times: int = 1) -> None:
    for _ in range(times):
        begin(breakers).succeeded()


def open_up(breakers: Breakers) -> None:
    fail(breakers, CONFIG.min_calls)
    assert breakers.state("d") == "open"


def half_open(breakers: Breakers, clock: Clock) -> Permit:
    open_up(breakers)
    clock.now += CONFIG.open_seconds
    return begin(breakers)


def test_case_76_one_failure_of_one_request_does_not_trip(breakers: Breakers) -> None:
    fail(breakers, 1)
    assert breakers.state("d") == "closed"
    assert breakers.resting("d") is None


def test_it_takes_the_minimum_of_calls(breakers: Breakers, seen: Seen) -> None:
    fail(breakers, CONFIG.min_calls - 1)
    assert breakers.state("d") == "closed"
    fail(breakers)
    assert breakers.state("d") == "open"
    assert breakers.resting("d") == Rest(15, limited=False)
    assert breakers.begin("d") is None
    assert seen.moves == [("closed", "open")]


def test_it_takes_the_share_of_failures(breakers: Breakers) -> None:
    succeed(breakers, 50)
    fail(breakers, 49)
    assert breakers.state("d") == "closed"
    fail(breakers)
    assert breakers.state("d") == "open"


def test_what_left_the_window_counts_no_more(breakers: Breakers, clock: Clock) -> None:
    fail(breakers, 9)
    clock.now += CONFIG.window
    fail(breakers, 9)
    assert breakers.state("d") == "closed"


def test_the_window_rolls(breakers: Breakers, clock: Clock) -> None:
    for _ in range(9):
        fail(breakers)
        clock.now += 2
    fail(breakers)
    assert breakers.state("d") == "open"


def test_deployments_are_apart(breakers: Breakers) -> None:
    open_up(breakers)
    assert breakers.state("other") == "closed"
    assert breakers.begin("other") is not None


def test_abandoned_calls_count_neither_way(breakers: Breakers) -> None:
    for _ in range(100):
        begin(breakers).abandoned()
    fail(breakers, 9)
    assert breakers.state("d") == "closed"
    for _ in range(100):
        begin(breakers).abandoned()
    fail(breakers)
    assert breakers.state("d") == "open"


def test_a_probe_that_succeeds_closes(breakers: Breakers, clock: Clock, seen: Seen) -> None:
    probe = half_open(breakers, clock)
    assert probe.probe
    assert breakers.state("d") == "half_open"
    probe.succeeded()
    assert breakers.state("d") == "closed"
    assert seen.moves == [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]


def test_a_probe_that_fails_opens_for_the_full_time(breakers: Breakers, clock: Clock) -> None:
    half_open(breakers, clock).failed()
    assert breakers.resting("d") == Rest(15, limited=False)


def test_only_one_probe_is_out(breakers: Breakers, clock: Clock) -> None:
    half_open(breakers, clock)
    assert breakers.begin("d") is None
    rest = breakers.resting("d")
    assert rest is not None
    assert 0 < rest.seconds <= 1


def test_a_probe_whose_client_leaves_frees_its_place(breakers: Breakers, clock: Clock) -> None:
    half_open(breakers, clock).abandoned()
    assert breakers.state("d") == "half_open"
    begin(breakers).succeeded()
    assert breakers.state("d") == "closed"


def test_several_probes_may_be_asked_for(clock: Clock) -> None:
    breakers = Breakers(BreakerConfig(probes=2, successes=2), clock=clock)
    first, second = half_open(breakers, clock), begin(breakers)
    assert breakers.begin("d") is None
    first.succeeded()
    assert breakers.state("d") == "half_open"
    second.succeeded()
    assert breakers.state("d") == "closed"


def test_old_calls_say_nothing_of_the_present(breakers: Breakers, clock: Clock) -> None:
    old = [begin(breakers) for _ in range(30)]
    probe = half_open(breakers, clock)
    old[0].succeeded()
    old[1].failed()
    old[2].abandoned()
    assert breakers.state("d") == "half_open"
    assert breakers.begin("d") is None  # the probe's place is still taken
    probe.succeeded()
    for permit in old[3:]:
        permit.failed()
    assert breakers.state("d") == "closed"


def test_only_the_first_word_counts(breakers: Breakers, clock: Clock) -> None:
    permit = begin(breakers)
    for _ in range(20):
        permit.failed()
    permit.succeeded()
    assert breakers.state("d") == "closed"
    fail(breakers, 9)
    clock.now += CONFIG.open_seconds
    probe = begin(breakers)
    probe.abandoned()
    probe.abandoned()
    probe.failed()
    begin(breakers)
    assert breakers.begin("d") is None


def test_an_answer_that_breaks_off_is_a_failure_and_no_success(breakers: Breakers) -> None:
    for _ in range(10):
        permit = begin(breakers)
        permit.succeeded()
        permit.failed()
    assert breakers.state("d") == "open"


def test_a_stream_that_broke_counts_once(breakers: Breakers) -> None:
    for _ in range(9):
        permit = begin(breakers)
        permit.succeeded()
        permit.failed()
    assert breakers.state("d") == "closed"


def test_a_probe_that_breaks_off_after_it_closed_is_one_failure(
    breakers: Breakers, clock: Clock
) -> None:
    probe = half_open(breakers, clock)
    probe.succeeded()
    probe.failed()
    assert breakers.state("d") == "closed"
    fail(breakers, 9)
    assert breakers.state("d") == "open"


def test_a_cooldown_rests_and_ends(breakers: Breakers, clock: Clock, seen: Seen) -> None:
    breakers.cool("d", 7)
    assert breakers.resting("d") == Rest(7, limited=True)
    assert breakers.begin("d") is None
    assert breakers.state("d") == "closed"
    clock.now += 7
    assert breakers.resting("d") is None
    assert seen.cooldowns == [("d", 7, True)]


def test_case_76_the_later_of_two_cooldowns_holds(breakers: Breakers, seen: Seen) -> None:
    breakers.cool("d", 5)
    breakers.cool("d", 60, limited=False)
    breakers.cool("d", 20)
    assert breakers.resting("d") == Rest(60, limited=False)
    assert len(seen.cooldowns) == 2


@pytest.mark.parametrize("seconds", [0.0, -4.0])
def test_no_wait_is_no_cooldown(breakers: Breakers, seen: Seen, seconds: float) -> None:
    breakers.cool("d", seconds)
    assert breakers.resting("d") is None
    assert seen.cooldowns == []


def test_a_cooldown_is_capped(breakers: Breakers) -> None:
    breakers.cool("d", 86_400)
    assert breakers.resting("d") == Rest(300, limited=True)


def test_an_open_breaker_rests_for_the_longer_cooldown(breakers: Breakers, clock: Clock) -> None:
    open_up(breakers)
    breakers.cool("d", 40, limited=False)
    clock.now += 15
    assert breakers.begin("d") is None
    clock.now += 25
    assert begin(breakers).probe


def test_a_limited_probe_leaves_the_breaker_half_open(breakers: Breakers, clock: Clock) -> None:
    probe = half_open(breakers, clock)
    breakers.cool("d", 3)
    probe.abandoned()
    assert breakers.begin("d") is None
    clock.now += 3
    assert begin(breakers).probe


def test_deployments_that_are_gone_are_forgotten(breakers: Breakers) -> None:
    open_up(breakers)
    permit = begin(breakers, "kept")
    breakers.retain({"kept"})
    assert breakers.state("d") == "closed"
    permit.failed()


class BreakerMachine(RuleBasedStateMachine):
    """Calls that overlap, end in any way and at any time, against a model of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.seen = Seen()
        self.breakers = Breakers(CONFIG, self.seen, self.clock)
        self.out: list[Permit] = []
        self.begun: dict[Permit, int] = {}
        self.cooled_until = 0.0
        self.failures = 0
        self.opened_at = -CONFIG.open_seconds

    @rule(seconds=st.floats(min_value=0, max_value=40))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(count=st.integers(min_value=1, max_value=12))
    def calls_begin(self, count: int) -> None:
        for _ in range(count):
            rest = self.breakers.resting("d")
            permit = self.breakers.begin("d")
            assert (permit is None) == (rest is not None)
            if permit is not None:
                assert self.clock.now >= self.cooled_until
                assert permit.probe == (self.breakers.state("d") == "half_open")
                self.out.append(permit)
                self.begun[permit] = len(self.seen.moves)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def a_call_is_answered(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(self.out))
        before = self.breakers.state("d")
        probe = permit.probe
        permit.succeeded()
        after = self.breakers.state("d")
        assert after == before or (probe and (before, after) == ("half_open", "closed"))
        if data.draw(st.booleans()):
            self.out.remove(permit)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), count=st.integers(min_value=1, max_value=12))
    def calls_fail(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.out))):
            permit = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            before, probe = self.breakers.state("d"), permit.probe
            self.failures += 1
            permit.failed()
            after = self.breakers.state("d")
            if before == "half_open" and probe:
                assert after == "open"
            if after == "open" and before != "open":
                assert before == "half_open" or self.failures >= CONFIG.min_calls / 2
                self.opened_at = self.clock.now

    @precondition(lambda self: self.out)
    @rule(data=st.data(), count=st.integers(min_value=1, max_value=12))
    def calls_are_abandoned(self, data: st.DataObject, count: int) -> None:
        before = self.breakers.state("d")
        for _ in range(min(count, len(self.out))):
            self.out.pop(data.draw(st.integers(0, len(self.out) - 1))).abandoned()
        assert self.breakers.state("d") == before

    @rule(seconds=st.floats(min_value=-1, max_value=1000), limited=st.booleans())
    def an_upstream_asks_for_a_wait(self, seconds: float, limited: bool) -> None:
        before = self.breakers.state("d")
        self.breakers.cool("d", seconds, limited)
        if seconds > 0:
            until = self.clock.now + min(seconds, CONFIG.max_cooldown)
            self.cooled_until = max(self.cooled_until, until)
        assert self.breakers.state("d") == before

    @invariant()
    def never_more_than_one_probe(self) -> None:
        if self.breakers.state("d") == "half_open":
            # probes of earlier half-open times may still be out; they are none of this one's
            current = [p for p in self.out if p.probe and self.begun[p] == len(self.seen.moves)]
            assert len(current) <= 1
            assert not current or self.breakers.resting("d") is not None

    @invariant()
    def an_open_breaker_rests_for_its_time(self) -> None:
        if self.breakers.state("d") == "open" and self.clock.now < (
            self.opened_at + CONFIG.open_seconds
        ):
            assert self.breakers.begin("d") is None

    @invariant()
    def the_later_cooldown_holds(self) -> None:
        rest = self.breakers.resting("d")
        left = self.cooled_until - self.clock.now
        if left > 0:
            assert rest is not None
            assert rest.seconds >= left - 1e-6
        assert rest is None or rest.seconds <= CONFIG.max_cooldown + 1e-6

    @invariant()
    def it_moves_only_as_a_breaker_may(self) -> None:
        legal = {
            ("closed", "open"),
            ("open", "half_open"),
            ("half_open", "open"),
            ("half_open", "closed"),
        }
        assert set(self.seen.moves) <= legal
        for (_, reached), (left, _) in zip(self.seen.moves, self.seen.moves[1:], strict=False):
            assert reached == left


class NoFaultMachine(RuleBasedStateMachine):
    """Without faults of the upstream nothing ever opens, whatever else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breakers = Breakers(CONFIG, None, self.clock)

    @rule(count=st.integers(min_value=1, max_value=30), answered=st.booleans())
    def calls(self, count: int, answered: bool) -> None:
        for _ in range(count):
            permit = self.breakers.begin("d")
            if permit is not None:
                if answered:
                    permit.succeeded()
                permit.abandoned()

    @rule(seconds=st.floats(min_value=0, max_value=40))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(seconds=st.floats(min_value=0, max_value=40))
    def a_limit(self, seconds: float) -> None:
        self.breakers.cool("d", seconds)

    @invariant()
    def it_stays_closed(self) -> None:
        assert self.breakers.state("d") == "closed"


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNoFaultMachine = NoFaultMachine.TestCase
TestNoFaultMachine.settings = settings(max_examples=40, deadline=None)
