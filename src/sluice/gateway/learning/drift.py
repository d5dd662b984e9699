"""Drift: whether the traffic is still what a model was made for. Pure.

Two things are looked at. The scores: their population stability index (PSI) against those of the
requests at the model's birth; below 0.1 is nothing, from 0.2 on the traffic is another. And the
outcomes: by how much answers have become worse, as far as chance can't have done it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles, variance
from typing import Annotated

import msgspec

#: Parts into which scores are cut.
BINS = 10

#: Fewer values say nothing.
ENOUGH = 50

#: A part that nobody is in stands for this share, so that the logarithm is finite.
_LEAST = 1e-3

#: One-sided, 97.5 %.
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What is known of some answers' quality.

    Attributes:
        count: of the answers.
        mean: of their scores.
        variance: of a single score.
    """

    count: Annotated[int, msgspec.Meta(ge=1)]
    mean: float
    variance: Annotated[float, msgspec.Meta(ge=0)]


def edges_of(scores: Sequence[float]) -> list[float]:
    """The values that cut scores into parts of about equal size; fewer where many are equal."""
    return sorted(set(quantiles(scores, n=BINS, method="inclusive")))


def shares_of(scores: Sequence[float], edges: Sequence[float]) -> list[float]:
    """The share of the scores in each part: one more than there are edges."""
    counts = [0] * (len(edges) + 1)
    for score in scores:
        counts[bisect_right(edges, score)] += 1
    return [count / len(scores) for count in counts]


def stability_index(expected: Sequence[float], found: Sequence[float]) -> float:
    """The PSI of shares against expected ones."""
    was = [max(share, _LEAST) for share in expected]
    now = [max(share, _LEAST) for share in found]
    return sum((b - a) * math.log(b / a) for a, b in zip(was, now, strict=True))


def outcomes_of(scores: Sequence[float]) -> Outcomes | None:
    """Of single scores; None where there are too few."""
    if len(scores) < ENOUGH:
        return None
    return Outcomes(len(scores), fmean(scores), variance(scores))


def sure_drop(before: Outcomes, now: Outcomes) -> float:
    """By how much the mean fell at least, with 97.5 % confidence; 0 where it may not have."""
    error = math.sqrt(before.variance / before.count + now.variance / now.count)
    return max(0.0, before.mean - now.mean - _Z * error)
