"""Whether a replica takes requests, and how many: a state machine over what happens to it.

    joining   known, not proven: no requests until a probe succeeds
    ready     takes requests
    draining  takes none, finishes what it has; does not come back
    ejected   takes none for a while, then a probe must succeed

A replica that re-enters after an ejection starts with a tenth of the usual load and reaches all of
it in half a minute, so that a cold or half-broken one is not buried. Each ejection in a row lasts
twice as long as the one before; a replica that stays ready for ten minutes has a clean record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

State = Literal["joining", "ready", "draining", "ejected"]


class Event(Enum):
    """What may happen to a replica."""

    HEARTBEAT = "its worker renewed the lease"
    LEASE_LAPSED = "its worker was not heard for a lease's time"
    PROBE_OK = "a timed probe of one token succeeded"
    PROBE_FAILED = "a probe failed, or the engine says that it is unhealthy"
    PROBE_SLOW = "a probe took too long"
    REQUEST_OK = "a request got its first token"
    REQUEST_FAILED = "a request failed by the replica's fault"
    UNREACHABLE = "a connection was refused or reset before an answer"
    REQUEST_STALLED = "a stream stood still for longer than it may"
    DRAIN_ASKED = "an operator or its worker wants it to finish"


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """When a replica is taken out, and how it comes back; times in seconds.

    Attributes:
        failures: failed requests in a row that eject.
        slow_probes: slow or failed probes in a row that eject.
        first_ejection: how long the first one lasts.
        longest_ejection: what doubling leads to at most.
        ramp: from re-entry to the full load.
        least_weight: share of the load at re-entry.
        clean_after: of being ready, until earlier ejections are forgotten.
    """

    failures: int = 3
    slow_probes: int = 2
    first_ejection: float = 5.0
    longest_ejection: float = 60.0
    ramp: float = 30.0
    least_weight: float = 0.1
    clean_after: float = 600.0


@dataclass(frozen=True, slots=True)
class Member:
    """A replica's standing.

    Attributes:
        state: what it may do.
        since: when the state began, seconds.
        until: of an ejection, the time from which a probe may end it.
        failures: failed requests in a row.
        bad_probes: slow or failed probes in a row.
        ejections: in a row, without a long good time between.
        ramped: whether it re-entered and is given its load slowly.
        cause: what made the state, for operators.
    """

    state: State
    since: float
    until: float = 0.0
    failures: int = 0
    bad_probes: int = 0
    ejections: int = 0
    ramped: bool = False
    cause: Event | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether requests may go there."""
        return self.state == "ready"


def joined(now: float) -> Member:
    """A replica that has just become known."""
    return Member("joining", now)


def step(member: Member, event: Event, now: float, policy: HealthPolicy) -> Member:
    """The standing after an event.

    Args:
        member: the standing before.
        event: what happened.
        now: when, in seconds.
        policy: the limits.

    Returns:
        The new standing; the same object where nothing changed.
    """
    if member.state == "draining":
        return member
    if event is Event.DRAIN_ASKED:
        return Member("draining", now, ejections=member.ejections, cause=event)
    if event in (Event.LEASE_LAPSED, Event.UNREACHABLE):
        return _eject(member, event, now, policy)
    if member.state == "ready":
        return _while_ready(member, event, now, policy)
    if event is Event.PROBE_OK and now >= member.until:
        ramped = member.state == "ejected"
        return Member("ready", now, ejections=member.ejections, ramped=ramped, cause=event)
    if event in (Event.PROBE_FAILED, Event.PROBE_SLOW) and now >= member.until:
        return _eject(member, event, now, policy) if member.state == "ejected" else member
    return member


def weight(member: Member, now: float, policy: HealthPolicy) -> float:
    """The share of the usual load that a replica may have: 0 unless it is ready, at most 1."""
    if member.state != "ready":
        return 0.0
    if not member.ramped:
        return 1.0
    part = (now - member.since) / policy.ramp
    return min(1.0, policy.least_weight + (1.0 - policy.least_weight) * max(0.0, part))


def _while_ready(member: Member, event: Event, now: float, policy: HealthPolicy) -> Member:
    if event is Event.REQUEST_STALLED:
        return _eject(member, event, now, policy)
    if event is Event.REQUEST_FAILED:
        failures = member.failures + 1
        if failures >= policy.failures:
            return _eject(member, event, now, policy)
        return replace(member, failures=failures)
    if event in (Event.PROBE_FAILED, Event.PROBE_SLOW):
        bad = member.bad_probes + 1
        if bad >= policy.slow_probes:
            return _eject(member, event, now, policy)
        return replace(member, bad_probes=bad)
    if event is Event.REQUEST_OK and member.failures:
        return replace(member, failures=0)
    if event is Event.PROBE_OK and (member.bad_probes or member.ejections):
        clean = now - member.since >= policy.clean_after
        return replace(member, bad_probes=0, ejections=0 if clean else member.ejections)
    return member


def _eject(member: Member, cause: Event, now: float, policy: HealthPolicy) -> Member:
    if member.state == "ejected" and now < member.until:
        return member
    doubled = policy.first_ejection * 2.0 ** min(member.ejections, 16)
    until = now + min(policy.longest_ejection, doubled)
    return Member("ejected", now, until, ejections=member.ejections + 1, cause=cause)
