"""Rows as the matrix that a fit sees: the rule, the signals, and the words.

numpy does the sums of training. Scoring doesn't need it: a gateway never imports this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.router.complexity.features import signals_of, words_of
from sluice.router.complexity.rule import WEIGHTS
from sluice.router.complexity.signals import SIGNALS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: What one standard deviation of the rule, and of a signal, counts beside all words together,
#: whose length is 1. The larger, the less it is shrunk.
RULE_SCALE = 0.2
SIGNAL_SCALE = 0.025
#: Signals that hardly vary aren't blown up.
_LEAST_DEVIATION = 0.05

#: The rule's weight of each signal.
RULE = np.array([WEIGHTS.get(name, 0.0) for name in SIGNALS])


@dataclass(frozen=True, slots=True)
class Design:
    """The matrix of some rows. Its columns: the rule's score, the signals, the hashed words.

    Attributes:
        dense: the first of them, as they are, without scaling.
        words: column numbers of all rows, one row after the other.
        row_of: for each of `words`, the row.
        values: for each of `words`, the value; every row's have length 1.
    """

    dense: Floats
    words: Ints
    row_of: Ints
    values: Floats

    @classmethod
    def of(cls, features: Sequence[bytes]) -> Design:
        """The matrix of requests' features.

        Raises:
            ValueError: the bytes are no features, or of another version.
        """
        signals = np.array([list(signals_of(found)) for found in features], dtype=np.float64)
        signals = signals.reshape(len(features), len(SIGNALS)) / 255
        words = [np.array(words_of(found), dtype=np.int64) for found in features]
        counts = np.array([len(row) for row in words], dtype=np.int64)
        return cls(
            dense=np.column_stack((signals @ RULE, signals)),
            words=np.concatenate([*words, np.empty(0, dtype=np.int64)]),
            row_of=np.repeat(np.arange(len(words)), counts),
            values=np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts),
        )

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def rule(self) -> Floats:
        """The rule's score of each row."""
        return self.dense[:, 0]

    @property
    def signals(self) -> Floats:
        """The signals of each row."""
        return self.dense[:, 1:]

    def take(self, chosen: npt.NDArray[np.bool_]) -> Design:
        """The matrix of some of the rows."""
        kept = chosen[self.row_of]
        renumbered = np.cumsum(chosen) - 1
        return Design(
            self.dense[chosen], self.words[kept], renumbered[self.row_of[kept]], self.values[kept]
        )

    def wording(self, table: Floats) -> Floats:
        """What each row's words amount to."""
        values: Floats = self.values * table[self.words]
        return _summed(self.row_of, values, len(self))

    def columns(self, rows: Floats, size: int) -> Floats:
        """The `size` columns of words, each multiplied with a value a row."""
        values: Floats = self.values * rows[self.row_of]
        return _summed(self.words, values, size)


def _summed(places: Ints, values: Floats, size: int) -> Floats:
    """The sum of the values at each place."""
    sums: Floats = np.bincount(places, weights=values, minlength=size).astype(np.float64)
    return sums


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the dense columns are shifted by and multiplied with before the fit.

    Attributes:
        mean: of each.
        factor: of each.
    """

    mean: Floats
    factor: Floats

    @classmethod
    def of(cls, dense: Floats, weights: Floats) -> Scaling:
        """The scaling by which columns vary as much as they are to count."""
        mean = np.average(dense, axis=0, weights=weights)
        variance = np.average((dense - mean) ** 2, axis=0, weights=weights)
        count = np.full(dense.shape[1], SIGNAL_SCALE)
        count[0] = RULE_SCALE
        return cls(mean, count / np.maximum(np.sqrt(variance), _LEAST_DEVIATION))

    def scaled(self, dense: Floats) -> Floats:
        """The columns as the fit sees them."""
        scaled: Floats = (dense - self.mean) * self.factor
        return scaled
