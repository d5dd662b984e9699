"""Replicas that come, fail, return and leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.membership import Event, HealthPolicy, Member, joined, step, weight

POLICY = HealthPolicy()


def after(*events: Event, member: Member | None = None, now: float = 0.0) -> Member:
    member = member or joined(now)
    for event in events:
        member = step(member, event, now, POLICY)
    return member


READY = after(Event.PROBE_OK)
EJECTED = after(Event.REQUEST_STALLED, member=READY)


def test_a_replica_proves_itself_first() -> None:
    assert joined(0.0).state == "joining"
    assert after(Event.HEARTBEAT, Event.PROBE_FAILED, Event.PROBE_SLOW).state == "joining"
    assert READY.takes_requests
    assert weight(READY, 0.0, POLICY) == 1.0


def test_failures_in_a_row_eject() -> None:
    failing = after(Event.REQUEST_FAILED, Event.REQUEST_FAILED, member=READY)
    assert failing.state == "ready"
    assert after(Event.REQUEST_OK, Event.REQUEST_FAILED, member=failing).state == "ready"
    ejected = after(Event.REQUEST_FAILED, member=failing)
    assert (ejected.state, ejected.cause) == ("ejected", Event.REQUEST_FAILED)


def test_a_stall_a_refused_connection_and_a_lapsed_lease_eject_at_once() -> None:
    for event in (Event.REQUEST_STALLED, Event.UNREACHABLE, Event.LEASE_LAPSED):
        assert after(event, member=READY).state == "ejected"


def test_bad_probes_in_a_row_eject() -> None:
    assert after(Event.PROBE_SLOW, Event.PROBE_OK, Event.PROBE_FAILED, member=READY).takes_requests
    assert after(Event.PROBE_SLOW, Event.PROBE_FAILED, member=READY).state == "ejected"


def test_it_comes_back_slowly_after_its_time() -> None:
    assert after(Event.PROBE_OK, member=EJECTED, now=4.9).state == "ejected"
    back = after(Event.PROBE_OK, member=EJECTED, now=5.0)
    assert back.state == "ready"
    assert weight(back, 5.0, POLICY) == 0.1
    assert 0.5 < weight(back, 20.0, POLICY) < 0.6
    assert weight(back, 35.0, POLICY) == 1.0


def test_each_ejection_in_a_row_is_longer() -> None:
    member, now, lasted = READY, 0.0, []
    for _ in range(6):
        member = after(Event.UNREACHABLE, member=member, now=now)
        lasted.append(member.until - now)
        now = member.until
        member = after(Event.PROBE_OK, member=member, now=now)
    assert lasted == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    clean = after(Event.PROBE_OK, member=member, now=now + 600.0)
    assert clean.ejections == 0


def test_a_failed_probe_after_the_time_ejects_anew() -> None:
    again = after(Event.PROBE_FAILED, member=EJECTED, now=5.0)
    assert (again.state, again.until) == ("ejected", 15.0)


def test_draining_is_for_good() -> None:
    draining = after(Event.DRAIN_ASKED, member=READY)
    assert draining.state == "draining"
    for event in Event:
        assert after(event, member=draining) is draining


times = st.lists(st.tuples(st.sampled_from(Event), st.floats(0, 100)), max_size=60)


@given(times)
def test_whatever_happens(happened: list[tuple[Event, float]]) -> None:
    member, now = joined(0.0), 0.0
    for event, gap in happened:
        now += gap
        before, member = member, step(member, event, now, POLICY)
        share = weight(member, now, POLICY)
        assert member.takes_requests == (share > 0)
        assert share <= 1.0
        if member.takes_requests and not before.takes_requests:
            assert event is Event.PROBE_OK
            assert now >= before.until
        if before.state == "draining":
            assert member.state == "draining"
        if event in (Event.UNREACHABLE, Event.LEASE_LAPSED, Event.DRAIN_ASKED):
            assert not member.takes_requests
        assert member.until - now <= POLICY.longest_ejection + 1e-6


@given(times)
def test_a_healthy_replica_always_comes_back(happened: list[tuple[Event, float]]) -> None:
    member, now = joined(0.0), 0.0
    for event, gap in happened:
        now += gap
        if event is not Event.DRAIN_ASKED:
            member = step(member, event, now, POLICY)
    later = now + POLICY.longest_ejection
    assert step(member, Event.PROBE_OK, later, POLICY).takes_requests
