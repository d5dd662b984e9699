"""Fits a model to labelled requests."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
import numpy.typing as npt

from sluice.router.complexity.model import Model, fingerprint, pack
from sluice.router.complexity.rule import SPREAD
from sluice.router.complexity.scorer import Scorer
from sluice.router.training.curve import Curve, Outcomes, measure
from sluice.router.training.design import RULE, Design, Floats
from sluice.router.training.ridge import Fit, ridge
from sluice.router.training.rows import Row, TooFewLabels, part

Chosen = npt.NDArray[np.bool_]

#: Labelled requests below which nothing is fitted; the rule does until some 300.
MIN_LABELS = 100
#: Of the ridge, in rows; what the fit of each counts, cross-validation tells.
PENALTIES = (5.0, 10.0, 20.0, 40.0, 80.0)
#: A penalty that counts for less isn't worth its fit.
_LEAST_COUNT = 0.01
#: What is believed of the rule before the first label: its correlation with the benefit, over
#: requests of several kinds. Fits are shrunk towards that, not towards zero.
_BELIEF = 0.1
_FOLDS = 5
_LEAST_SCALE = 1e-6
_LEAST_ERROR = 1e-12


@dataclass(frozen=True, slots=True)
class Trained:
    """A candidate.

    Attributes:
        model: the file, for `Scorer.of_model`; a megabyte at most.
        sha256: of the file, in hex; its name.
        labels: rows that it was fitted on.
        penalties: of the ridge, each with what its fit counts in the model; 1 in all.
        curve: its figures by cross-validation: each row scored by a fit that hasn't seen it.
        rule: the rule's figures on the same rows.
    """

    model: bytes
    sha256: str
    labels: int
    penalties: Mapping[float, float]
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
        benefit = (self.strong - self.weak)[self.paired]
        deviation = float(benefit.std()) if len(benefit) else 0.0
        #: What a unit of the rule is believed to be worth, in units of the outcome.
        self._belief = _BELIEF * deviation / SPREAD
        #: What the strong model's outcome is believed to be, but for a constant, by the weak one's.
        self._expected = self.weak + self._belief * self.design.rule

    def fit(self, chosen: Chosen, penalties: Mapping[float, float]) -> Fit:
        """The benefit as a function, by the chosen rows: the mean of the fits with these
        penalties, by what each counts."""
        first, *others = (
            self._fit(chosen, penalty).times(counts) for penalty, counts in penalties.items()
        )
        return sum(others, first)

    def _fit(self, chosen: Chosen, penalty: float) -> Fit:
        """What the rule is believed to be worth, and a fit of the rest.

        Where all have both outcomes that is one fit of their difference. Else it is the
        difference of two, each by the rows that know the outcome: the same where both apply.
        """
        if self.paired[chosen].all():
            rest = self._ridge(chosen, self.strong - self._expected, penalty)
        else:
            expected = self._ridge(chosen, self._expected, penalty)
            rest = self._ridge(chosen, self.strong, penalty) + expected.times(-1)
        return Fit(rest.bias, rest.signals + self._belief * RULE, rest.table)

    def _ridge(self, chosen: Chosen, target: Floats, penalty: float) -> Fit:
        known = chosen & ~np.isnan(target)
        if not known.any():
            raise TooFewLabels("one of the two models has no outcome at all")
        return ridge(self.design.take(known), target[known], self.weights[known], penalty)

    def cross_validated(self, penalties: Mapping[float, float]) -> Floats:
        """Each row's benefit by a fit that hasn't seen it.

        Fits differ in their mean too, by what happens to be left out, and most where labels are
        few. That says nothing of a request, and is taken out.
        """
        found = np.empty(len(self.rows))
        levels = []
        for fold in range(_FOLDS):
            out = self.fold == fold
            if out.any():
                fit = self.fit(~out, penalties)
                predicted = fit.predict(self.design)
                levels.append(np.average(predicted, weights=self.weights))
                found[out] = predicted[out] - levels[-1]
        return found + np.mean(levels)

    def _error(self, predicted: Floats) -> float:
        """Mean square error of predicted benefits."""
        paired = self.paired
        benefit = (self.strong - self.weak)[paired]
        square = (predicted[paired] - benefit) ** 2
        return float(np.average(square, weights=self.weights[paired]))

    def counts(self, tried: Mapping[float, Floats]) -> dict[float, float]:
        """What each penalty's fit counts, by its cross-validated benefits: their likelihood. Few
        labels can't tell penalties apart, and then the mean of all is better than any.
        """
        errors = {penalty: self._error(found) for penalty, found in tried.items()}
        least = max(min(errors.values()), _LEAST_ERROR)
        half = self.paired.sum() / 2
        likely = {each: exp(half * (least - error) / least) for each, error in errors.items()}
        kept = {each: by for each, by in likely.items() if by >= _LEAST_COUNT}
        return {each: by / sum(kept.values()) for each, by in kept.items()}


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
    tried = {penalty: labels.cross_validated({penalty: 1.0}) for penalty in PENALTIES}
    penalties = labels.counts(tried)
    unseen = np.sum([counts * tried[each] for each, counts in penalties.items()], axis=0)
    fitted = labels.fit(np.ones(len(rows), dtype=bool), penalties)
    model = pack(_calibrated(fitted, labels, unseen))
    rule = Scorer()
    return Trained(
        model=model,
        sha256=fingerprint(model),
        labels=len(rows),
        penalties=penalties,
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
        usual=tuple(labels.design.signals.mean(axis=0).tolist()),
        usual_wording=float(labels.design.wording(fitted.table).mean()),
        centre=centre,
        scale=scale,
        quantiles=tuple(scores.tolist()),
        table=array("f", fitted.table.tolist()),
        labels=len(labels.rows),
    )
