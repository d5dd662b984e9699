"""Reading labelled prompts, and splitting them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView
from sluice.router.training.rows import InvalidRow, Row, part, read_rows
from tests.router.training import outcomes


def test_lines_become_rows() -> None:
    text = b'{"prompt":"Hi","strong_score":1,"weak_score":0.5,"group":"g","more":[]}\n\n'
    more = b'{"prompt":"Ho","weak_score":0,"weight":0.25}'
    first, second = read_rows([text, b"\n", more])
    assert first == Row(extract(RequestView.of_prompt("Hi")), 1.0, 0.5, group="g")
    assert (second.strong, second.weak, second.weight, second.paired) == (None, 0.0, 0.25, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "line 2"),
        (b'{"strong_score":1}', "prompt"),
        (b'{"prompt":"x"}', "`strong_score` or `weak_score`"),
        (b'{"prompt":"x","strong_score":1.5}', "between 0 and 1"),
        (b'{"prompt":"x","strong_score":1,"weight":0}', "`weight`"),
        (b'{"prompt":"\xff","strong_score":1}', "line 2"),
    ],
)
def test_a_line_that_can_t_be_read_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(InvalidRow, match="line 2") as refused:
        read_rows([b"\n", line])
    assert reason in str(refused.value)


def test_parts_are_even_within_parts() -> None:
    rows = [row for row in outcomes.rows(2_000) if part(row, 4)]
    assert len(rows) == pytest.approx(1_500, abs=60)
    sizes = [sum(part(row, 5) == number for row in rows) for number in range(5)]
    assert min(sizes) > 250


def test_a_group_is_in_one_part() -> None:
    rows = [replace(row, group="talk") for row in outcomes.rows(50)]
    assert len({part(row, 4) for row in rows}) == 1
