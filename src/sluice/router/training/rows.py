"""Labelled requests: what training reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from zlib import crc32

import msgspec

from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView


class TooFewLabels(ValueError):
    """The labelled requests don't do for what was asked; more may. The message says why."""


class NoGap(TooFewLabels):
    """In these the strong model is no better on average: there is nothing to route by."""


class InvalidRow(ValueError):
    """A line of labelled prompts can't be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request and how well models of two tiers did on it.

    Attributes:
        features: of the request, as `Scored.features`.
        strong: the strong model's outcome, 0 to 1; None where unknown.
        weak: the weak model's outcome, 0 to 1; None where unknown. A row needs one of the two;
            figures (curves, comparisons) take only rows with both.
        weight: how much the row counts, above 0; labels that are only signals count for less
            than 1.
        group: rows that belong together, as those of one conversation: they are never on both
            sides of a split. None: the row is by itself.
    """

    features: bytes
    strong: float | None
    weak: float | None
    weight: float = 1.0
    group: str | None = None

    @property
    def paired(self) -> bool:
        """Both outcomes are known."""
        return self.strong is not None and self.weak is not None


class _Line(msgspec.Struct):
    prompt: str
    strong_score: float | None = None
    weak_score: float | None = None
    weight: float = 1.0
    group: str | None = None


_LINE = msgspec.json.Decoder(_Line)


def read_rows(lines: Iterable[bytes]) -> list[Row]:
    """Rows of JSON lines with `prompt`, `strong_score` and `weak_score` (either may be absent),
    and perhaps `weight` and `group`. Empty lines are passed over.

    Raises:
        InvalidRow: naming the line and what is wrong with it.
    """
    rows = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = _LINE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRow(f"line {number}: {error}") from None
        scores = [score for score in (line.strong_score, line.weak_score) if score is not None]
        if not scores:
            raise InvalidRow(f"line {number}: `strong_score` or `weak_score` is required")
        if not all(0 <= score <= 1 for score in scores):
            raise InvalidRow(f"line {number}: scores must lie between 0 and 1")
        if not (line.weight > 0 and isfinite(line.weight)):
            raise InvalidRow(f"line {number}: `weight` must be above 0")
        features = extract(RequestView.of_prompt(line.prompt))
        rows.append(Row(features, line.strong_score, line.weak_score, line.weight, line.group))
    return rows


def part(row: Row, parts: int) -> int:
    """Which of so many parts the row belongs to: always the same one, whatever other rows there
    are, and for all rows of a group. What a model has not seen, its successors of the same
    split haven't either."""
    key = row.features if row.group is None else row.group.encode()
    # The low bits of a CRC of short keys are uneven.
    return (crc32(key) * 0x9E3779B1 >> 16 & 0xFFFF) % parts
