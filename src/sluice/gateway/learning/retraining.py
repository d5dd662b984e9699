"""Retraining: a candidate from labelled requests, and whether it is better than what scores now.
Takes seconds of processor time; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sluice.gateway.learning.drift import edges_of, outcomes_of, shares_of
from sluice.gateway.learning.examples import Labelled, rows_of
from sluice.router.complexity.scorer import Scorer
from sluice.router.training.fit import Labels, train
from sluice.router.training.promotion import Comparison, compare
from sluice.router.training.rows import NoGap, Row, TooFewLabels


@dataclass(frozen=True, slots=True)
class Present:
    """What scores now.

    Attributes:
        scorer: the rule, or a model.
        trained_until: the newest request that the model has seen; None: it has seen none. Figures
            on what it has seen would flatter it.
    """

    scorer: Scorer
    trained_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that was made.

    Attributes:
        file: the model.
        report: what is known of it; see `docs/auto-routing.md`.
        better: it beats what scores now on requests that neither has seen.
    """

    file: bytes
    report: dict[str, Any]
    better: bool


class CrossFitted:
    """Scores each row by a fit that has seen neither it nor others of its conversation."""

    def __init__(self, rows: Sequence[Row], penalties: Mapping[float, float]) -> None:
        """Args:
        rows: with features that differ.
        penalties: of the fits. That they were weighed on the same rows flatters next to nothing.
        """
        unseen: list[float] = Labels(rows).cross_validated(penalties).tolist()
        self._scores = {row.features: score for row, score in zip(rows, unseen, strict=True)}

    def score_features(self, features: bytes) -> float:
        """See `Scorer`; of a row's features."""
        return self._scores[features]


def make_candidate(
    labelled: Sequence[Labelled], recent: Sequence[bytes], present: Present
) -> Candidate:
    """Train on labelled requests.

    Args:
        labelled: the requests.
        recent: features of requests as they come now, labelled or not; drift is told by them.
        present: what scores now.

    Raises:
        TooFewLabels, NoGap: see `training.fit.train`.
    """
    rows = rows_of(labelled)
    trained = train(rows)
    unseen = CrossFitted(rows, trained.penalties)
    comparison = _against(present, unseen, labelled)
    scorer = Scorer.of_model(trained.model)
    scores = [scorer.score_features(features) for features in recent]
    given = [score for each in labelled if (score := each.given()) is not None]
    edges = edges_of(scores)
    outcomes = outcomes_of(given)
    report: dict[str, Any] = {
        "labels": trained.labels,
        "trained_until": max(each.time for each in labelled).isoformat(),
        "curve": asdict(trained.curve),
        "against_present": None if comparison is None else _figures(comparison),
        "score_edges": edges,
        "score_shares": shares_of(scores, edges),
        "outcomes": None if outcomes is None else asdict(outcomes),
    }
    return Candidate(trained.model, report, comparison is not None and comparison.better)


def _against(
    present: Present, candidate: CrossFitted, labelled: Sequence[Labelled]
) -> Comparison | None:
    """The comparison on what neither has seen; None where there is too little of it."""
    until = present.trained_until
    unseen = rows_of(each for each in labelled if until is None or each.time > until)
    try:
        return compare(candidate, present.scorer, unseen)
    except (TooFewLabels, NoGap):
        return None


def _figures(comparison: Comparison) -> Mapping[str, Any]:
    return {
        "present": asdict(comparison.present),
        "candidate": asdict(comparison.candidate),
        "gain": asdict(comparison.gain),
        "better": comparison.better,
    }
