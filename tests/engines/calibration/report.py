"""How far off the simulated engine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.backends.engine import EngineConfig
from tests.engines.calibration.fitting import Measured
from tests.engines.calibration.measuring import Timing
from tests.engines.calibration.simulating import simulate

#: The figures of a load: what, and at which percentile.
FIGURES = (("ttft", 50), ("ttft", 90), ("itl", 50), ("itl", 90))


@dataclass(frozen=True, slots=True)
class Row:
    """A load's figures in seconds, measured and simulated, in the order of `FIGURES`."""

    load: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]
    hits_agree: bool

    @property
    def errors(self) -> list[float]:
        """By how much the simulated figures are larger, as a share of the measured ones."""
        return [
            # Tokens that came in a burst have no time between: then it is a share of 1 ms.
            (ours - real) / max(real, 0.001)
            for ours, real in zip(self.simulated, self.measured, strict=True)
        ]


def compare(config: EngineConfig, measured: Measured, served: bool = False) -> list[Row]:
    """One row for each load."""
    rows = []
    for load, timings in measured:
        simulated = [each.timing for each in simulate(config, load, served)]
        real_hits, hits = [t.cached for t in timings], [t.cached for t in simulated]
        rows.append(Row(load.name, _figures(timings), _figures(simulated), real_hits == hits))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, in milliseconds."""
    heads = [f"{what.upper()} p{percentile}" for what, percentile in FIGURES]
    lines = ["| load | " + " | ".join(heads) + " | cache hits |", "|---|" + "---:|" * 4 + "---|"]
    for row in rows:
        cells = [
            f"{real * 1000:.1f} → {ours * 1000:.1f} ({error:+.0%})"
            for real, ours, error in zip(row.measured, row.simulated, row.errors, strict=True)
        ]
        agree = "equal" if row.hits_agree else "differ"
        lines.append(f"| {row.load} | " + " | ".join(cells) + f" | {agree} |")
    return "\n".join(lines)


def median_errors(rows: Sequence[Row]) -> dict[str, float]:
    """The median of the errors' sizes, by figure."""
    errors = np.abs([row.errors for row in rows])
    return {
        f"{what}_p{percentile}": round(float(median), 3)
        for (what, percentile), median in zip(FIGURES, np.median(errors, axis=0), strict=True)
    }


def _figures(timings: Sequence[Timing]) -> tuple[float, ...]:
    values = {
        "ttft": [timing.ttft for timing in timings],
        "itl": [gap for timing in timings for gap in timing.gaps],
    }
    return tuple(float(np.percentile(values[what], at)) for what, at in FIGURES)
