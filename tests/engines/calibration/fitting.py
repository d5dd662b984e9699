"""The pace with the least error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sluice.backends.engine import EngineConfig, Pace
from tests.engines.calibration.loads import Load
from tests.engines.calibration.measuring import Timing
from tests.engines.calibration.simulating import TERMS, Simulated, Vector, simulate

#: Where the search begins: not far from a small model on a processor.
FIRST_GUESS = Pace(
    step_seconds=0.004, floor_seconds=0.0, prefill_token_seconds=5e-5, request_seconds=0.005
)
#: Relative errors above this one count linearly: a busy machine makes outliers.
_TOLERANCE = 0.1

Measured = Sequence[tuple[Load, Sequence[Timing]]]


def fit(config: EngineConfig, measured: Measured, rounds: int = 6) -> Pace:
    """Fit a pace to what was measured.

    What a step computed depends on the pace, by what came meanwhile; so the steps are simulated
    again with each better pace.
    """
    pace = FIRST_GUESS
    for _ in range(rounds):
        rows, seconds = _equations(replace(config, pace=pace), measured)
        solution = _solve(rows, seconds)
        pace = Pace(floor_seconds=0.0, **dict(zip(TERMS, solution.tolist(), strict=True)))
    return pace


def _equations(config: EngineConfig, measured: Measured) -> tuple[Vector, Vector]:
    """A time to first token, and a mean time between tokens, are sums of terms."""
    rows: list[Vector] = []
    seconds: list[float] = []
    for load, timings in measured:
        for timing, simulated in zip(timings, simulate(config, load), strict=True):
            _add(rows, seconds, timing, simulated)
    return np.array(rows), np.array(seconds)


def _add(rows: list[Vector], seconds: list[float], timing: Timing, simulated: Simulated) -> None:
    rows.append(simulated.first)
    seconds.append(timing.ttft)
    gaps = len(timing.tokens) - 1
    if gaps:
        rows.append(simulated.rest / gaps)
        seconds.append((timing.tokens[-1] - timing.tokens[0]) / gaps)


def _solve(rows: Vector, seconds: Vector) -> Vector:
    """Least squares of the relative errors, none of the solution negative."""
    # Tokens that came in a burst, because their client was held up, have hardly a time between.
    typical = np.maximum(seconds, np.median(seconds) / 2)
    rows, seconds = rows / typical[:, None], seconds / typical
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1
    weights = np.ones(len(seconds))
    solution = np.zeros(len(TERMS))
    for _ in range(20):
        solution = _not_negative(rows / scale * weights[:, None], seconds * weights) / scale
        errors = np.abs(rows @ solution - seconds)
        weights = np.sqrt(_TOLERANCE / np.maximum(errors, _TOLERANCE))
    return solution


def _not_negative(rows: Vector, values: Vector) -> Vector:
    """Least squares without the terms that would be negative, the most negative first."""
    solution = np.zeros(rows.shape[1])
    kept = list(range(rows.shape[1]))
    while kept:
        found = np.linalg.lstsq(rows[:, kept], values, rcond=None)[0]
        if found.min() >= 0:
            solution[kept] = found
            break
        del kept[int(found.argmin())]
    return solution
