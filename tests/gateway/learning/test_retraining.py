"""Candidates: better where there is something to learn, and not where there is not."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from sluice.gateway.learning.examples import Labelled, Opinion
from sluice.gateway.learning.retraining import Candidate, Present, make_candidate
from sluice.router.complexity.features import extract
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import RequestView
from sluice.router.training.rows import NoGap, TooFewLabels
from tests.gateway.learning.synthetic import is_hard, prompts

BEGIN = datetime(2026, 3, 5, tzinfo=UTC)
COUNT = 200
#: To each prompt the weak model's outcome.
WEAK = [0.0 if is_hard(prompt) else 1.0 for prompt in prompts(COUNT, seed=1)]


def labelled(weak: list[float], strong: float = 1.0) -> list[Labelled]:
    return [
        Labelled(
            request_id=UUID(int=number),
            time=BEGIN + timedelta(minutes=number),
            features=extract(RequestView.of_prompt(prompt)),
            strong=False,
            conversation=number.to_bytes(16),
            opinions=[Opinion("judge", strong=strong, weak=outcome)],
        )
        for number, (prompt, outcome) in enumerate(zip(prompts(COUNT, seed=1), weak, strict=True))
    ]


def candidate(weak: list[float], present: Present | None = None) -> Candidate:
    examples = labelled(weak)
    recent = [each.features for each in examples]
    return make_candidate(examples, recent, present or Present(Scorer()))


@pytest.fixture(scope="module")
def learnt() -> Candidate:
    return candidate(WEAK)


def test_where_there_is_something_to_learn_it_is_better(learnt: Candidate) -> None:
    assert learnt.better
    gain = learnt.report["against_present"]["gain"]
    assert gain["low"] > 0
    scorer = Scorer.of_model(learnt.file)
    scores = {
        hard: scorer.score(RequestView.of_prompt(f"Please list something about {subject}.")).score
        for subject, hard in (("tensors", True), ("gardens", False))
    }
    assert scores[True] > scores[False]


def test_its_report_says_what_drift_is_told_by(learnt: Candidate) -> None:
    report = learnt.report
    assert report["labels"] == COUNT
    assert report["trained_until"] == (BEGIN + timedelta(minutes=COUNT - 1)).isoformat()
    assert len(report["score_shares"]) == len(report["score_edges"]) + 1
    assert sum(report["score_shares"]) == pytest.approx(1)
    assert report["outcomes"]["mean"] == pytest.approx(sum(WEAK) / COUNT)


def test_where_there_is_nothing_to_learn_it_is_not() -> None:
    shuffled = WEAK.copy()
    random.Random(0).shuffle(shuffled)
    assert not candidate(shuffled).better


def test_the_present_model_is_not_beaten_on_what_it_has_seen(learnt: Candidate) -> None:
    newest = BEGIN + timedelta(minutes=COUNT)
    again = candidate(WEAK, Present(Scorer.of_model(learnt.file), newest))
    assert not again.better
    assert again.report["against_present"] is None


def test_labels_that_teach_nothing() -> None:
    with pytest.raises(TooFewLabels):
        make_candidate(labelled(WEAK)[:60], [], Present(Scorer()))
    with pytest.raises(NoGap):
        make_candidate(labelled([1.0] * COUNT, strong=0.5), [], Present(Scorer()))
