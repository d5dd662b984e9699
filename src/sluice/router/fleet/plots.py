"""Pictures of a run: TTFT's distribution, TTFT over time, and each replica's prefill."""

from __future__ import annotations

from pathlib import Path

from sluice.router.fleet.simulation import Run


class PlotsUnavailable(Exception):
    """matplotlib is not installed; the message says which extra brings it."""


def draw(run: Run, directory: Path) -> list[Path]:
    """Write PNG files.

    Args:
        run: finished.
        directory: made if it is not there.

    Returns:
        The files.

    Raises:
        PlotsUnavailable: without matplotlib.
        OSError: the directory cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an optional extra
    except ImportError:
        raise PlotsUnavailable(
            "plots need matplotlib: pip install 'sluice-gateway[plots]'"
        ) from None
    directory.mkdir(parents=True, exist_ok=True)
    timed = [
        (outcome.request.time, ttft)
        for outcome in run.outcomes
        if (ttft := outcome.ttft) is not None
    ]
    ordered = sorted(ttft for _, ttft in timed)
    written = []

    def save(figure: Figure, name: str) -> None:
        figure.savefig(directory / name, dpi=120)
        written.append(directory / name)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="TTFT, s", ylabel="share of requests", xscale="log")
    axes.plot(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))])
    axes.grid(alpha=0.3)
    save(figure, "ttft_distribution.png")

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="arrival, s", ylabel="TTFT, s")
    axes.plot([time for time, _ in timed], [ttft for _, ttft in timed], ".", markersize=2)
    refused = [outcome.request.time for outcome in run.outcomes if outcome.shed is not None]
    axes.plot(refused, [0.0] * len(refused), "x", markersize=3, label=f"{len(refused)} refused")
    axes.legend()
    save(figure, "ttft_over_time.png")

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="replica", ylabel="prompt tokens computed")
    axes.bar(range(len(run.computed)), run.computed)
    save(figure, "prefill_by_replica.png")
    return written
