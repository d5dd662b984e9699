"""Training on made-up outcomes whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.router.complexity.features import BUCKETS
from sluice.router.complexity.rule import WEIGHTS
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView
from sluice.router.training.curve import Outcomes, measure
from sluice.router.training.design import RULE, Design
from sluice.router.training.fit import MIN_LABELS, Labels, Trained, train
from sluice.router.training.promotion import compare
from sluice.router.training.report import render_comparison, render_trained
from sluice.router.training.ridge import ridge
from sluice.router.training.rows import NoGap, TooFewLabels, part
from tests.router.training import outcomes


@pytest.fixture(name="trained", scope="module")
def make_trained() -> Trained:
    return train(outcomes.rows(600))


def benefit(scorer: Scorer, topic: str) -> float:
    return scorer.benefit(scorer.score(RequestView.of_prompt(f"Know the {topic}?")).features)


def test_the_model_learns_where_the_strong_one_gains(trained: Trained) -> None:
    scorer = Scorer.of_model(trained.model)
    found = sorted(outcomes.CHANCES, key=lambda topic: benefit(scorer, topic))
    assert set(found[:2]) == {"tides of the western harbour", "names of the kings"}
    assert found[3] == "wiring of the old mill"


def test_its_figures_hold_on_new_requests(trained: Trained) -> None:
    rows = outcomes.rows(2_000, seed=7)
    scorer = Scorer.of_model(trained.model)
    scores = np.array([scorer.score_features(row.features) for row in rows])
    new = measure(scores, Outcomes.of(rows))
    assert trained.curve.apgr.low < new.apgr.value < trained.curve.apgr.high
    assert new.apgr.value > 0.65 > trained.rule.apgr.value


def test_scores_are_spread_as_the_quantiles_say(trained: Trained) -> None:
    scorer = Scorer.of_model(trained.model)
    scores = np.array([scorer.score_features(row.features) for row in outcomes.rows(2_000, seed=8)])
    for share in (0.2, 0.5, 0.8):
        threshold = scorer.quantiles[round(100 * (1 - share))]
        assert (scores >= threshold).mean() == pytest.approx(share, abs=0.07)


def test_the_same_rows_give_the_same_file(trained: Trained) -> None:
    again = train(outcomes.rows(600))
    assert (again.model, again.sha256) == (trained.model, trained.sha256)
    assert trained.labels == 600


def test_labels_of_one_model_at_a_time_are_learnt_from(trained: Trained) -> None:
    rows = outcomes.rows(900)
    split = [
        row
        if at % 3 == 0
        else replace(row, strong=None)
        if at % 3 == 1
        else replace(row, weak=None)
        for at, row in enumerate(rows)
    ]
    found = train(split)
    assert found.curve.rows == 300
    scorer = Scorer.of_model(found.model)
    assert benefit(scorer, "wiring of the old mill") > benefit(scorer, "names of the kings") + 0.2


def test_weak_labels_count_for_less() -> None:
    rows = outcomes.rows(400)
    lies = [
        replace(row, strong=row.weak, weak=row.strong, weight=0.01)
        for row in outcomes.rows(400, seed=5)
    ]
    scorer = Scorer.of_model(train([*rows, *lies]).model)
    assert benefit(scorer, "wiring of the old mill") > benefit(scorer, "names of the kings") + 0.2


def test_ridge_is_the_solution_of_its_equations() -> None:
    rows = outcomes.rows(150)
    design = Design.of([row.features for row in rows])
    random = np.random.default_rng(0)
    target, weights = random.random(150), random.random(150) + 0.5
    fit = ridge(design, target, weights, 4.0)
    weights = weights / weights.mean()
    # Of a word's weight the derivative is 0: its residuals, weighted, are the penalty's pull.
    rest = weights * (target - fit.predict(design))
    pull = design.columns(rest, BUCKETS)
    np.testing.assert_allclose(pull, 4.0 * fit.table, atol=2e-2)


def test_what_labels_do_not_say_is_as_the_rule_says() -> None:
    labels = Labels(outcomes.rows(120))
    fit = labels.fit(np.ones(120, dtype=bool), {1e9: 1.0})
    worth = fit.signals[SIGNALS.index("maths")] / WEIGHTS["maths"]
    assert 0.02 < worth < 0.2
    np.testing.assert_allclose(fit.signals, worth * RULE, atol=1e-6)
    np.testing.assert_allclose(fit.table, 0, atol=1e-6)


def test_penalties_count_by_how_well_they_predict() -> None:
    labels = Labels(outcomes.rows(300))
    truth = labels.strong - labels.weak
    counts = labels.counts({1.0: truth + 0.3, 2.0: truth + 0.3, 3.0: truth + 0.9})
    assert counts == {1.0: 0.5, 2.0: 0.5}
    assert sum(train(outcomes.rows(150)).penalties.values()) == pytest.approx(1)


def test_the_folds_fits_are_on_one_level() -> None:
    labels = Labels(outcomes.rows(120))
    found = labels.cross_validated({1e9: 1.0})
    belief = found - labels.fit(np.ones(120, dtype=bool), {1e9: 1.0}).predict(labels.design)
    assert belief.std() == pytest.approx(0, abs=1e-6)


def test_a_hundred_labels_are_the_least() -> None:
    rows = outcomes.rows(MIN_LABELS)
    with pytest.raises(TooFewLabels, match=f"{MIN_LABELS} are needed"):
        train(rows[:-1])
    assert train(rows).labels == MIN_LABELS


def test_nothing_is_learnt_without_a_gap_or_without_pairs() -> None:
    rows = outcomes.rows(200)
    with pytest.raises(NoGap):
        train([replace(row, strong=row.weak) for row in rows])
    with pytest.raises(TooFewLabels, match="both outcomes"):
        train([replace(row, weak=None) for row in rows])


def test_only_what_is_better_takes_over() -> None:
    rows = outcomes.rows(1_200)
    kept = [row for row in rows if part(row, 4)]
    held = [row for row in rows if not part(row, 4)]
    trained = train(kept)
    scorer = Scorer.of_model(trained.model)
    found = compare(scorer, Scorer(), held)
    assert found.better
    assert found.gain.low > 0
    assert not compare(scorer, scorer, held).better
    assert not compare(Scorer(), scorer, held).better
    assert "better" in render_comparison(found, scorer.name, "rule")
    assert trained.sha256 in render_trained(trained)
