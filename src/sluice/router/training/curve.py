"""Quality against cost: what a scorer's order of requests is worth.

The metrics are RouteLLM's (arXiv 2406.18665): PGR(c) is the part of the gap between the weak
and the strong model's mean outcome that is closed when the share c of requests with the
highest scores goes to the strong model; APGR its mean over c (a random order has 0.5); CPT(x)
the smallest c at which PGR reaches x. Between two scores the curve is straight, which is the
expectation over every order of requests with the same score.

Intervals are of the bootstrap over requests, or over groups of them, with the scorer fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.router.training.rows import NoGap, Row, TooFewLabels

Floats = npt.NDArray[np.float64]

#: Rows with both outcomes below which no figure means anything.
MIN_PAIRED = 50
_SHARES = np.linspace(0, 1, 11)
_SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve.

    Attributes:
        share: of requests that go to the strong model.
        quality: mean outcome.
    """

    share: float
    quality: Interval


@dataclass(frozen=True, slots=True)
class Curve:
    """A scorer's curve.

    Attributes:
        rows: that it was measured on.
        weak: mean outcome when all go to the weak model.
        strong: mean outcome when all go to the strong one.
        apgr: area under the curve of PGR.
        cpt50: share of strong calls that closes half of the gap.
        cpt80: share that closes 80 % of it.
        points: at shares 0, 0.1, ... 1.
    """

    rows: int
    weak: float
    strong: float
    apgr: Interval
    cpt50: Interval
    cpt80: Interval
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of rows that have both.

    Attributes:
        strong: the strong model's.
        weak: the weak model's.
        weights: of the rows.
        groups: numbers; rows of one number are drawn together.
    """

    strong: Floats
    weak: Floats
    weights: Floats
    groups: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Outcomes:
        """The outcomes of rows, all with both.

        Raises:
            TooFewLabels: fewer than `MIN_PAIRED`.
            NoGap: the strong model is no better on average.
        """
        if len(rows) < MIN_PAIRED:
            raise TooFewLabels(
                f"{len(rows)} labelled requests have both outcomes; {MIN_PAIRED} are needed"
            )
        numbers: dict[str | int, int] = {}
        keys = (at if row.group is None else row.group for at, row in enumerate(rows))
        found = cls(
            strong=np.array([row.strong for row in rows], dtype=np.float64),
            weak=np.array([row.weak for row in rows], dtype=np.float64),
            weights=np.array([row.weight for row in rows], dtype=np.float64),
            groups=np.array([numbers.setdefault(key, len(numbers)) for key in keys]),
        )
        if np.average(found.strong - found.weak, weights=found.weights) <= 0:
            raise NoGap("the strong model is no better than the weak one on average")
        return found

    def draws(self, runs: int) -> list[Floats]:
        """The weights in `runs` bootstrap draws; the same ones each time."""
        random = np.random.default_rng(_SEED)
        groups = int(self.groups.max()) + 1
        even = np.full(groups, 1 / groups)
        return [self.weights * random.multinomial(groups, even)[self.groups] for _ in range(runs)]


def measure(scores: Floats, outcomes: Outcomes, runs: int = 500) -> Curve:
    """The curve of scores; the higher a score, the sooner its request goes to the strong model.

    Args:
        scores: of the rows, in the order of `outcomes`.
        outcomes: of the rows.
        runs: bootstrap draws.
    """
    order = _Order(scores, outcomes)
    figures = order.figures(outcomes.weights)
    drawn = np.array([order.figures(weights) for weights in outcomes.draws(runs)])
    low, high = _bounds(drawn)
    intervals = [
        Interval(float(value), float(low[at]), float(high[at])) for at, value in enumerate(figures)
    ]
    return Curve(
        rows=len(scores),
        weak=float(np.average(outcomes.weak, weights=outcomes.weights)),
        strong=float(np.average(outcomes.strong, weights=outcomes.weights)),
        apgr=intervals[0],
        cpt50=intervals[1],
        cpt80=intervals[2],
        points=tuple(
            Point(float(share), quality)
            for share, quality in zip(_SHARES, intervals[3:], strict=True)
        ),
    )


def gain(candidate: Floats, present: Floats, outcomes: Outcomes, runs: int = 500) -> Interval:
    """How much larger the candidate's APGR is than that of the present scores, on the same
    draws."""
    new, old = _Order(candidate, outcomes), _Order(present, outcomes)

    def difference(weights: Floats) -> float:
        return float(new.figures(weights)[0] - old.figures(weights)[0])

    low, high = _bounds(np.array([difference(weights) for weights in outcomes.draws(runs)]))
    return Interval(difference(outcomes.weights), float(low), float(high))


def _bounds(drawn: Floats) -> Floats:
    """The 95 % interval of each figure. A draw without a gap between the models has none."""
    bounds: Floats = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
    return bounds


class _Order:
    """Outcomes in the order of some scores, to be weighted in many ways."""

    def __init__(self, scores: Floats, outcomes: Outcomes) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._benefit = (outcomes.strong - outcomes.weak)[self._order]
        self._weak = outcomes.weak[self._order]
        changes = np.nonzero(np.diff(scores[self._order]))[0]
        self._ends = np.append(changes, len(scores) - 1)

    def figures(self, weights: Floats) -> Floats:
        """APGR, CPT(50 %), CPT(80 %), and the quality at each of `_SHARES`."""
        ordered = weights[self._order]
        total = ordered.sum()
        share = np.append(0.0, np.cumsum(ordered)[self._ends] / total)
        gained = np.append(0.0, np.cumsum(ordered * self._benefit)[self._ends] / total)
        quality = float(ordered @ self._weak / total) + np.interp(_SHARES, share, gained)
        if gained[-1] <= 0:
            return np.concatenate((np.full(3, np.nan), quality))
        recovered = gained / gained[-1]
        area = np.sum(np.diff(share) * (recovered[1:] + recovered[:-1]) / 2)
        reached = [_first(share, recovered, part) for part in (0.5, 0.8)]
        return np.concatenate(([area, *reached], quality))


def _first(share: Floats, recovered: Floats, part: float) -> float:
    """The smallest share at which the curve, straight between its points, reaches a part."""
    at = int(np.argmax(recovered >= part - 1e-12))
    before, after = recovered[at - 1], recovered[at]
    if after == before:
        return float(share[at])
    return float(share[at - 1] + (part - before) / (after - before) * (share[at] - share[at - 1]))
