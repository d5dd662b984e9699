"""Fits a model to labelled requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.router.complexity.model import Model, fingerprint, pack
from sluice.router.complexity.scorer import Scorer
from sluice.router.training.curve import Curve, Outcomes, measure
from sluice.router.training.design import Design, Floats
from sluice.router.training.ridge import Fit, ridge
from sluice.router.training.rows import Row, TooFewLabels, part

Chosen = npt.NDArray[np.bool_]

#: Labelled requests below which nothing is fitted; the rule does until some 300.
MIN_LABELS = 100
#: Of the ridge, in rows; which of them, cross-validation tells.
PENALTIES = (5.0, 10.0, 20.0, 40.0, 80.0)
_FOLDS = 5
_LEAST_SCALE = 1e-6


@dataclass(frozen=True, slots=True)
class Trained:
    """A candidate.

    Attributes:
        model: the file, for `Scorer.of_model`; a megabyte at most.
        sha256: of the file, in hex; its name.
        labels: rows that it was fitted on.
        penalty: of the ridge, the one of `PENALTIES` with the least error.
        curve: its figures by cross-validation: each row scored by a fit that hasn't seen it.
        rule: the rule's figures on the same rows.
    """

    model: bytes
    sha256: str
    labels: int
    penalty: float
    curve: Curve
    rule: Curve


class Labels:
    """Rows as numbers: one matrix, and the outcomes with their gaps."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Args:
        rows: the labelled requests.

        Raises:
            ValueError: features that are none, or of another version.
        """
        self.rows = rows
        self.design = Design.of([row.features for row in rows])
        self.weights = np.array([row.weight for row in rows], dtype=np.float64)
        # An unknown outcome is NaN, which float64 makes of None.
        self.strong = np.array([row.strong for row in rows], dtype=np.float64)
        self.weak = np.array([row.weak for row in rows], dtype=np.float64)
        self.paired = np.array([row.paired for row in rows], dtype=bool)
        self.fold = np.array([part(row, _FOLDS) for row in rows], dtype=np.int64)

    def fit(self, chosen: Chosen, penalty: float) -> Fit:
        """The benefit as a function, by the chosen rows.

        Where all have both outcomes that is one fit of their difference. Else it is the
        difference of two, each by the rows that know the outcome: the same where both apply.
        """
        if self.paired[chosen].all():
            return self._fit(chosen, self.strong - self.weak, penalty)
        return self._fit(chosen, self.strong, penalty).less(self._fit(chosen, self.weak, penalty))

    def _fit(self, chosen: Chosen, target: Floats, penalty: float) -> Fit:
        known = chosen & ~np.isnan(target)
        if not known.any():
            raise TooFewLabels("one of the two models has no outcome at all")
        return ridge(self.design.take(known), target[known], self.weights[known], penalty)

    def cross_validated(self, penalty: float) -> Floats:
        """Each row's benefit by a fit that hasn't seen it."""
        found = np.empty(len(self.rows))
        for fold in range(_FOLDS):
            out = self.fold == fold
            if out.any():
                found[out] = self.fit(~out, penalty).predict(self.design.take(out))
        return found

    def error(self, predicted: Floats) -> float:
        """Mean square error of predicted benefits."""
        paired = self.paired
        benefit = (self.strong - self.weak)[paired]
        square = (predicted[paired] - benefit) ** 2
        return float(np.average(square, weights=self.weights[paired]))


def train(rows: Sequence[Row]) -> Trained:
    """Fit, cross-validate and calibrate a model.

    Deterministic: the same rows in the same order give the same file. Takes some seconds for
    10,000 rows.

    Raises:
        TooFewLabels: fewer than `MIN_LABELS` rows, or than `curve.MIN_PAIRED` with both outcomes.
        NoGap: the strong model is no better on average.
        ValueError: features that are none, or of another version.
    """
    if len(rows) < MIN_LABELS:
        raise TooFewLabels(f"{len(rows)} labelled requests; {MIN_LABELS} are needed")
    labels = Labels(rows)
    paired = [row for row in rows if row.paired]
    outcomes = Outcomes.of(paired)
    tried = {penalty: labels.cross_validated(penalty) for penalty in PENALTIES}
    penalty = min(tried, key=lambda penalty: labels.error(tried[penalty]))
    unseen = tried[penalty]
    fitted = labels.fit(np.ones(len(rows), dtype=bool), penalty)
    model = pack(_calibrated(fitted, labels, unseen))
    rule = Scorer()
    return Trained(
        model=model,
        sha256=fingerprint(model),
        labels=len(rows),
        penalty=penalty,
        curve=measure(unseen[labels.paired], outcomes),
        rule=measure(np.array([rule.score_features(row.features) for row in paired]), outcomes),
    )


def _calibrated(fitted: Fit, labels: Labels, unseen: Floats) -> Model:
    """The model whose scores are spread as those of rows that it has not seen."""
    centre, scale = float(unseen.mean()), max(float(unseen.std()), _LEAST_SCALE)
    scores = 1 / (1 + np.exp(-(np.quantile(unseen, np.linspace(0, 1, 101)) - centre) / scale))
    return Model(
        bias=fitted.bias,
        signals=tuple(fitted.signals.tolist()),
        usual=tuple(labels.design.dense[:, 1:].mean(axis=0).tolist()),
        usual_wording=float(labels.design.wording(fitted.table).mean()),
        centre=centre,
        scale=scale,
        quantiles=tuple(scores.tolist()),
        table=array("f", fitted.table.tolist()),
        labels=len(labels.rows),
    )
