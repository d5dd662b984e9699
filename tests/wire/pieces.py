"""Strategies for bytes that arrive in pieces, and for JSON that nobody expects."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

#: What any JSON text may hold; numbers beyond 64 bits and text beyond the BMP included.
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes cut at the given places, in order; places may repeat, so that pieces are empty."""
    marks = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


cuts = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)


def deep(depth: int = 100_000) -> bytes:
    """An array that holds an array that holds an array."""
    return b"[" * depth + b"]" * depth
