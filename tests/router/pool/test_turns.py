"""Whose turn it is."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.turns import Turns

NAMES = ("a", "b", "c")
LONG = 100.0


def wait(name: str, now: float, prefill: float = LONG) -> float:
    return Turns(name, 0.05).wait([peer for peer in NAMES if peer != name], prefill, now)


def test_alone_nobody_waits() -> None:
    assert Turns("a", 0.05).wait([], LONG, 1.0) == 0.0
    assert Turns("a", 0.0).wait(["b"], LONG, 1.0) == 0.0


def test_short_prompts_do_not_wait() -> None:
    assert max(wait(name, 1.0, prefill=0.2) for name in NAMES) == 0.0


@given(st.floats(0, 1e6))
def test_one_at_a_time_and_everybody_within_a_round(now: float) -> None:
    waits = [wait(name, now) for name in NAMES]
    assert waits.count(0.0) <= 1
    assert max(waits) <= len(NAMES) * 0.05 * 1.25


def test_what_one_places_the_next_one_knows() -> None:
    starts = sorted(wait(name, 0.011) for name in NAMES)
    assert all(after - before >= 0.05 + 0.01 for before, after in pairwise(starts))


@given(st.floats(0, 1e5), st.sampled_from(NAMES))
def test_the_wait_leads_into_ones_own_slot(now: float, name: str) -> None:
    waited = wait(name, now)
    assert waited == 0.0 or wait(name, now + waited + 1e-6) == 0.0
