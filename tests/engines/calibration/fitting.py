"""The pace with the least error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sluice.backends.engine import EngineConfig, Pace
from tests.engines.calibration.loads import Load
from tests.engines.calibration.measuring import Timing
from tests.engines.calibration.simulating import TERMS, Vector, simulate

#: Where the search begins: not far from a small model on a processor.
FIRST_GUESS = Pace(
    step_seconds=0.004, floor_seconds=0.0, prefill_token_seconds=5e-5, request_seconds=0.005
)
#: Relative errors below this one are none.
_RESOLUTION = 0.005

Measured = Sequence[tuple[Load, Sequence[Timing]]]


def fit(config: EngineConfig, measured: Measured, served: bool = False, rounds: int = 6) -> Pace:
    """Fit a pace to what was measured.

    What a step computed depends on the pace, by what came meanwhile; so the steps are simulated
    again with each better pace.
    """
    pace = FIRST_GUESS
    for _ in range(rounds):
        solution = _solve(*_equations(replace(config, pace=pace), measured, served))
        pace = Pace(floor_seconds=0.0, **dict(zip(TERMS, solution.tolist(), strict=True)))
    return pace


def _equations(
    config: EngineConfig, measured: Measured, served: bool
) -> tuple[Vector, Vector, Vector]:
    """Times to first tokens and between tokens are sums of terms; and how much each counts."""
    firsts: list[tuple[Vector, float]] = []
    gaps: list[tuple[Vector, float]] = []
    for load, timings in measured:
        for timing, simulated in zip(timings, simulate(config, load, served), strict=True):
            firsts.append((simulated.first, timing.ttft))
            gaps += zip(simulated.gaps, timing.gaps, strict=True)
    rows, seconds = zip(*firsts, *gaps, strict=True)
    # Both kinds count the same, though gaps are many.
    counts = np.repeat([1.0, np.sqrt(len(firsts) / len(gaps))], [len(firsts), len(gaps)])
    return np.array(rows), np.array(seconds), counts


def _solve(rows: Vector, seconds: Vector, counts: Vector) -> Vector:
    """The least sum of relative errors, none of the solution negative.

    Their sum, not that of their squares: what a busy machine adds to a few of the times is large,
    and says nothing of the engine.
    """
    # Tokens that came in a burst, because their client was held up, have hardly a time between.
    typical = np.maximum(seconds, np.median(seconds) / 2)
    rows, seconds = rows / typical[:, None], seconds / typical
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1
    weights = counts
    solution = np.zeros(len(TERMS))
    for _ in range(40):
        solution = _not_negative(rows / scale * weights[:, None], seconds * weights) / scale
        errors = np.abs(rows @ solution - seconds)
        weights = counts * np.sqrt(_RESOLUTION / np.maximum(errors, _RESOLUTION))
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
