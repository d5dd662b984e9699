"""What labels make of a request."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from sluice.gateway.learning.examples import (
    SIGNAL_WEIGHT,
    Labelled,
    Opinion,
    asks_again,
    row_of,
    rows_of,
)
from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView

GOOD, BAD = Opinion("feedback:user", 1.0), Opinion("feedback:user", 0.0)
JUDGED = Opinion("judge", strong=0.9, weak=0.3)
CUT_OFF = Opinion("signal:truncated", 0.0)


def labelled(*opinions: Opinion, strong: bool = False, features: bytes = b"features") -> Labelled:
    time = datetime(2026, 3, 5, tzinfo=UTC)
    return Labelled(UUID(int=1), time, features, strong, b"\x01\x02", opinions)


CASES = [
    # feedback says something of the answer that was given
    ([GOOD], False, (None, 1.0, 1.0)),
    ([GOOD], True, (1.0, None, 1.0)),
    ([GOOD, Opinion("feedback:tests", 0.5)], False, (None, 0.75, 1.0)),
    # the judge of both; callers know better
    ([JUDGED], False, (0.9, 0.3, 1.0)),
    ([JUDGED, BAD], False, (0.9, 0.0, 1.0)),
    ([JUDGED, BAD], True, (0.0, 0.3, 1.0)),
    # signals only where nobody else said anything
    ([CUT_OFF], False, (None, 0.0, SIGNAL_WEIGHT)),
    ([CUT_OFF, GOOD], False, (None, 1.0, 1.0)),
    ([CUT_OFF, JUDGED], False, (0.9, 0.3, 1.0)),
]


@pytest.mark.parametrize(("opinions", "strong", "expected"), CASES)
def test_the_row_of_a_request(
    opinions: list[Opinion], strong: bool, expected: tuple[float | None, float | None, float]
) -> None:
    row = row_of(labelled(*opinions, strong=strong))
    assert row is not None
    assert (row.strong, row.weak, row.weight) == expected
    assert (row.features, row.group) == (b"features", "0102")


def test_of_what_nothing_is_known_there_is_no_row() -> None:
    assert rows_of([labelled()]) == []


def test_pairs() -> None:
    opinions = ([GOOD], [JUDGED], [JUDGED, BAD])
    rows = rows_of(labelled(*each, features=bytes([n])) for n, each in enumerate(opinions))
    assert [row.paired for row in rows] == [False, True, True]


def test_the_same_prompt_put_to_both_tiers_is_a_pair() -> None:
    [row] = rows_of([labelled(BAD), labelled(GOOD, strong=True)])
    assert (row.strong, row.weak, row.weight) == (1.0, 0.0, 1.0)


def test_the_same_prompt_often_counts_as_often() -> None:
    [row] = rows_of([labelled(BAD), labelled(GOOD), labelled(CUT_OFF), labelled(JUDGED)])
    assert row.strong == 0.9
    assert row.weak == pytest.approx((0 + 1 + 0 + 0.3) / (3 + SIGNAL_WEIGHT))
    assert row.weight == 3 + SIGNAL_WEIGHT


@pytest.mark.parametrize(
    ("opinions", "strong", "expected"),
    [([GOOD, JUDGED], False, 1.0), ([JUDGED], False, 0.3), ([JUDGED], True, 0.9)],
)
def test_how_good_the_answer_was(opinions: list[Opinion], strong: bool, expected: float) -> None:
    assert labelled(*opinions, strong=strong).given() == expected


def test_signals_do_not_say_how_good_an_answer_was() -> None:
    assert labelled(CUT_OFF).given() is None


def features(text: str, turns: int = 1, length: int | None = None, tools: bool = False) -> bytes:
    return extract(RequestView(text, length or len(text), turns=turns, tools=tools))


QUESTION = "How do I sort a list of names in Python by the last one?"


@pytest.mark.parametrize(
    ("after", "again"),
    [
        (features(QUESTION, turns=2), True),
        (features("No. " + QUESTION), True),
        (features(QUESTION), False),  # a retry
        (features(QUESTION, length=9_000), False),  # an agent goes on
        (features(QUESTION, length=9_000, turns=2, tools=True), False),
        (features("No. " + QUESTION, turns=2, tools=True), True),
        (features("Thanks! And now the same for a dictionary, please."), False),
        (features(""), False),
    ],
)
def test_asking_again(after: bytes, again: bool) -> None:
    assert asks_again(features(QUESTION), after) is again
