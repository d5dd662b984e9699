"""A placement has to be much cheaper than what it decides about."""

from __future__ import annotations

from tests.router.pool.decision_time import measure


def test_a_decision_takes_microseconds_among_a_hundred_replicas() -> None:
    """The median in processor time, with slack for slow and shared machines."""
    times = measure(count=300)
    assert times["decision"].percentile(50) < 300
    assert times["hashing 32 kB"].percentile(50) < 150
