"""How long steps take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.engine import Pace
from sluice.backends.engine.pace import Load

seconds = st.floats(0, 1)


@given(st.floats(0.001, 1), seconds, seconds, st.floats(0, 0.01), st.integers(1, 50))
def test_many_steps_take_the_sum_of_each(
    floor: float, step: float, decode: float, context: float, count: int
) -> None:
    pace = Pace(step, floor, decode_seconds=decode, decode_context_seconds=context)
    each = [Load(decodes=3, decode_context=100 + 3 * position) for position in range(count)]
    total = sum(pace.duration(load) for load in each)
    assert pace.duration(each[0], count) == pytest.approx(total)


@given(st.integers(1, 40), st.integers(0, 2000))
def test_steps_are_cut_at_the_one_under_way(count: int, ticks: int) -> None:
    pace = Pace(1 / 64, 0.0, decode_seconds=1 / 64, decode_context_seconds=1 / 4096)
    load = Load(decodes=2, decode_context=50)
    within = pace.steps_within(load, count, ticks / 256)
    assert within == count or pace.duration(load, within) >= ticks / 256
    assert within == 1 or pace.duration(load, within - 1) < ticks / 256


def test_a_chunk_sees_the_tokens_before_it_and_its_own() -> None:
    load = Load()
    load.add(10, 4)
    load.add(100, 1)
    assert load == Load(4, 10 + 11 + 12 + 13, 1, 100)


def test_steps_must_take_time() -> None:
    with pytest.raises(ValueError, match="steps take time"):
        Pace(step_seconds=0, floor_seconds=0)
    with pytest.raises(ValueError, match="decode_seconds"):
        Pace(decode_seconds=-1)
