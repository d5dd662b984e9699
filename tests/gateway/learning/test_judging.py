"""What judges are asked, and what is made of their words."""

from __future__ import annotations

import json

import pytest

from sluice.gateway.learning.judging import (
    SEEN_CHARACTERS,
    Verdict,
    judge_body,
    read_verdict,
    strong_is_first,
)

FIRST = next(str(n) for n in range(100) if strong_is_first(str(n)))
SECOND = next(str(n) for n in range(100) if not strong_is_first(str(n)))


def shown_to(request_id: str, asked: str = "2+2?", strong: str = "four", weak: str = "five") -> str:
    body = json.loads(judge_body("judge", request_id, asked, strong, weak))
    assert body["model"] == "judge"
    text: str = body["messages"][1]["content"]
    return text


def test_each_tier_is_first_half_of_the_time() -> None:
    assert 400 < sum(strong_is_first(str(n)) for n in range(1000)) < 600


@pytest.mark.parametrize(("request_id", "strong_first"), [(FIRST, True), (SECOND, False)])
def test_the_verdict_goes_to_the_answer_that_it_is_of(request_id: str, strong_first: bool) -> None:
    text = shown_to(request_id)
    assert (text.index("four") < text.index("five")) is strong_first
    said = '{"first": 1, "second": 0.25}'
    expected = Verdict(1, 0.25) if strong_first else Verdict(0.25, 1)
    assert read_verdict(request_id, said) == expected


def test_the_middle_of_long_texts_is_left_out() -> None:
    text = shown_to(FIRST, asked="begin" + "x" * 10 * SEEN_CHARACTERS + "end")
    assert len(text) < SEEN_CHARACTERS + 500
    assert "begin" in text
    assert "end\n</request>" in text


@pytest.mark.parametrize(
    "said",
    [
        'Let me see {"first": 0} no.\n```json\n{"first": 0.5, "second": 0.5}\n```',
        '{"first": 0.5, "second": 0.5} (both half right)',
    ],
)
def test_what_is_around_a_verdict_does_not_matter(said: str) -> None:
    assert read_verdict(FIRST, said) == Verdict(0.5, 0.5)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "The first is better.",
        '{"first": 1}',
        '{"first": 1, "second": 2}',
        '{"first": true, "second": 0}',
        '{"first": "1", "second": 0}',
        '{"first": NaN, "second": 0}',
        '{"first": 1, "second": ',
        "{" * 10_000,
    ],
)
def test_no_verdict(said: str) -> None:
    assert read_verdict(FIRST, said) is None
