"""Curves and comparisons as text."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.router.training.curve import Curve, Interval
from sluice.router.training.fit import Trained
from sluice.router.training.promotion import Comparison

_HEAD = "strong calls   quality   [95 % interval]   of the gap"


def render_trained(trained: Trained) -> str:
    """What training has found, with the rule beside it."""
    return "\n".join(
        (
            f"model      {trained.sha256}",
            f"labels     {trained.labels}",
            f"penalties  {_counts(trained.penalties)} of the ridge, by cross-validation",
            "",
            "Cross-validated: each request scored by a fit that has not seen it.",
            render_curve(trained.curve),
            "",
            f"The rule on the same requests: APGR {_figure(trained.rule.apgr)}",
        )
    )


def render_comparison(comparison: Comparison, candidate: str, present: str) -> str:
    """Two scorers, by name, on the same requests."""
    verdict = "better" if comparison.better else "not shown to be better"
    return "\n".join(
        (
            render_curve(comparison.candidate),
            "",
            f"{present} on the same requests: APGR {_figure(comparison.present.apgr)}",
            f"{candidate} less {present}: {_figure(comparison.gain)}, {verdict}",
        )
    )


def render_curve(curve: Curve) -> str:
    """A curve as a table."""
    gap = curve.strong - curve.weak
    lines = [
        f"requests   {curve.rows}, weak {curve.weak:.3f}, strong {curve.strong:.3f}",
        f"APGR       {_figure(curve.apgr)}; a random order has 0.5",
        f"CPT(50%)   {_figure(curve.cpt50)} of calls strong for half of the gap",
        f"CPT(80%)   {_figure(curve.cpt80)} for 80 % of it",
        "",
        _HEAD,
    ]
    for point in curve.points:
        quality = point.quality
        part = (quality.value - curve.weak) / gap
        lines.append(
            f"{point.share:>11.0%}   {quality.value:7.3f}   "
            f"[{quality.low:.3f}, {quality.high:.3f}]    {part:10.1%}"
        )
    return "\n".join(lines)


def _counts(penalties: Mapping[float, float]) -> str:
    return ", ".join(f"{penalty:g}: {counts:.0%}" for penalty, counts in penalties.items())


def _figure(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
