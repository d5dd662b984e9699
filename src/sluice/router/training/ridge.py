"""Ridge regression by conjugate gradients: exact, and without a matrix of words by words."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.router.complexity.features import BUCKETS
from sluice.router.training.design import RULE, Design, Floats, Scaling

#: Iterations at most, and the part of the first residual's square at which it is done.
_ITERATIONS = 100
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Fit:
    """A linear function of a request.

    Attributes:
        bias: of a request with neither signals nor words.
        signals: a weight for each of `SIGNALS`, the rule's part in it.
        table: a weight for each hashed word.
    """

    bias: float
    signals: Floats
    table: Floats

    def predict(self, design: Design) -> Floats:
        """The function of each row."""
        predicted: Floats = self.bias + design.signals @ self.signals
        return predicted + design.wording(self.table)

    def __add__(self, other: Fit) -> Fit:
        """The sum of two functions."""
        return Fit(self.bias + other.bias, self.signals + other.signals, self.table + other.table)

    def times(self, factor: float) -> Fit:
        """`factor` times this function."""
        return Fit(factor * self.bias, factor * self.signals, factor * self.table)


def ridge(design: Design, target: Floats, weights: Floats, penalty: float) -> Fit:
    """The function that minimises sum(weight * (function - target)^2) + penalty * |coefficients|^2.

    The mean is free. A row's words have length 1, so that a penalty of 10 is as much as ten
    rows that say 0.

    Args:
        design: the rows.
        target: what each should give.
        weights: how much each counts; they are scaled to a mean of 1.
        penalty: above 0.
    """
    weights = weights / weights.mean()
    # Most words don't occur: what is solved for are those that do.
    used, renumbered = np.unique(design.words, return_inverse=True)
    design = replace(design, words=renumbered)
    scaling = Scaling.of(design.dense, weights)
    dense = scaling.scaled(design.dense)
    split = dense.shape[1]
    mean = float(np.average(target, weights=weights))

    def forward(coefficients: Floats) -> Floats:
        product: Floats = dense @ coefficients[:split]
        return product + design.wording(coefficients[split:])

    def backward(rows: Floats) -> Floats:
        return np.concatenate((dense.T @ rows, design.columns(rows, len(used))))

    found = np.zeros(split + len(used))
    residual = backward(weights * (target - mean))
    direction = residual
    square = first = float(residual @ residual)
    for _ in range(_ITERATIONS):
        if square <= _TOLERANCE * first:
            break
        image = backward(weights * forward(direction)) + penalty * direction
        step = square / float(direction @ image)
        found = found + step * direction
        residual = residual - step * image
        previous, square = square, float(residual @ residual)
        direction = residual + (square / previous) * direction
    table = np.zeros(BUCKETS)
    table[used] = found[split:]
    return _unscaled(found[:split], table, scaling, mean)


def _unscaled(dense: Floats, table: Floats, scaling: Scaling, mean: float) -> Fit:
    """The function in terms of the signals as they are; the rule is a sum of them."""
    dense = dense * scaling.factor
    return Fit(mean - float(dense @ scaling.mean), dense[1:] + dense[0] * RULE, table)
