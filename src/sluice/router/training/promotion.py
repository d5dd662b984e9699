"""Whether a candidate may take over from the scorer that serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sluice.router.training.curve import Curve, Interval, Outcomes, gain, measure
from sluice.router.training.rows import Row


class FeatureScorer(Protocol):
    """What can be compared: a `Scorer`, or several that each score the rows they haven't seen."""

    def score_features(self, found: bytes, /) -> float:
        """See `Scorer.score_features`."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two scorers on the same held-out rows.

    Attributes:
        candidate: the new one's curve.
        present: the present one's curve.
        gain: APGR of the candidate less that of the present one, with its interval by draws
            that both share.
        better: the gain's interval lies above 0: the candidate may take over.
    """

    candidate: Curve
    present: Curve
    gain: Interval
    better: bool


def compare(
    candidate: FeatureScorer, present: FeatureScorer, held_out: Sequence[Row]
) -> Comparison:
    """Compare on rows that neither was fitted on (see `rows.part`). Rows without both outcomes
    are passed over.

    Raises:
        TooFewLabels: fewer than `curve.MIN_PAIRED` rows have both.
        NoGap: the strong model is no better on average.
        ValueError: features that are none, or of another version.
    """
    rows = [row for row in held_out if row.paired]
    outcomes = Outcomes.of(rows)
    new, old = (
        np.array([scorer.score_features(row.features) for row in rows])
        for scorer in (candidate, present)
    )
    difference = gain(new, old, outcomes)
    return Comparison(
        candidate=measure(new, outcomes),
        present=measure(old, outcomes),
        gain=difference,
        better=difference.low > 0,
    )
