"""When a batch will be done, and what a window may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.gateway.batch.completion_window import read_window, window_text
from sluice.gateway.batch.estimate import estimated_completion

START = datetime(2026, 1, 1, tzinfo=UTC)
END = START + timedelta(hours=24)


def estimate(
    seconds: float, done: int, left: int, ahead: int = 0, rate: float | None = None
) -> float:
    found = estimated_completion(
        now=START + timedelta(seconds=seconds),
        started_at=START,
        expires_at=END,
        done=done,
        left=left,
        ahead=ahead,
        usual_rate=rate,
    )
    return (found - START).total_seconds()


def test_its_own_pace_decides() -> None:
    assert estimate(100, done=50, left=150, ahead=10_000, rate=9.0) == 400


def test_before_the_first_result_the_usual_pace_does() -> None:
    assert estimate(0, done=0, left=100, ahead=100, rate=2.0) == 100


def test_without_any_evidence_it_is_the_window() -> None:
    assert estimate(10, done=0, left=1) == 86_400


def test_it_is_never_after_the_window() -> None:
    assert estimate(1000, done=1, left=1_000_000_000) == 86_400


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("24h", timedelta(hours=24)),
        ("90m", timedelta(minutes=90)),
        ("60s", timedelta(minutes=1)),
        ("1h", timedelta(hours=1)),
    ],
)
def test_windows(text: str, window: timedelta) -> None:
    assert read_window(text) == window
    assert read_window(window_text(window)) == window


@pytest.mark.parametrize("text", ["", "25h", "59s", "0h", "24", "h", "-1h", "1.5h", "24h ", "٢h"])
def test_what_is_no_window(text: str) -> None:
    assert read_window(text) is None
