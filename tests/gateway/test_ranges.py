"""Ranges of bytes."""

from __future__ import annotations

import pytest

from sluice.gateway.routes.ranges import NotSatisfiable, byte_range


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("bytes=0-", (0, 10)),
        ("bytes=2-4", (2, 5)),
        ("bytes=2-400", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=4-2", None),
        ("bytes=0-1, 3-4", None),
        ("bytes=-", None),
        ("pages=1-2", None),
        (f"bytes={'9' * 5000}-", None),
        (f"bytes=-{'9' * 5000}", None),
    ],
)
def test_ranges(header: str | None, found: tuple[int, int] | None) -> None:
    assert byte_range(header, 10) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0", f"bytes={'9' * 18}-"])
def test_behind_the_end(header: str) -> None:
    with pytest.raises(NotSatisfiable):
        byte_range(header, 10)
