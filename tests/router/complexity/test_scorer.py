"""Scores: the rule's, a model's, and the file that a model is."""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from sluice.router.complexity.features import BUCKETS, extract, words_of
from sluice.router.complexity.model import InvalidModel, Model, fingerprint, pack, unpack
from sluice.router.complexity.rule import rule
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView
from sluice.wire.objects import decode_object

HARD = RequestView.of_prompt(
    "Let $f(x) = x^3 - 2x + 1$. Prove that the equation f(x) = 0 has three real roots, and "
    "compute their sum, product and the integral of f between the smallest and 7."
)
EASY = RequestView.of_prompt("Who sang in that band?")


@pytest.fixture(name="model")
def make_model() -> Model:
    """A model for which one word counts, and nothing else."""
    table = array("f", bytes(4 * BUCKETS))
    for word in words_of(extract(RequestView.of_prompt("needle"))):
        table[word] = 1.0
    return replace(
        rule(),
        signals=(0.0,) * len(SIGNALS),
        table=table,
        labels=500,
        usual_wording=0.1,
        centre=0.0,
        scale=0.5,
    )


def test_the_rule_tells_hard_from_easy_and_says_why(compiled: bool) -> None:
    scorer = Scorer(compiled=compiled)
    hard, easy = scorer.score(HARD), scorer.score(EASY)
    assert 0 < easy.score < 0.3
    assert 0.65 < hard.score < 1
    assert hard.reasons[0].startswith(("maths=+", "numbers=+"))
    assert any(reason.startswith("factual=-") for reason in easy.reasons)
    assert scorer.name == "rule"


def test_a_stored_request_scores_as_it_did_live(compiled: bool, model: Model) -> None:
    learnt = Scorer.of_model(pack(model), compiled=compiled)
    for scorer in (Scorer(compiled=compiled), learnt):
        for view in (HARD, EASY):
            scored = scorer.score(view)
            assert scorer.score_features(scored.features) == scored.score


@pytest.mark.parametrize(("text", "wording"), [("needle", 1.0), ("", 0.0)])
def test_one_word_and_none_are_scored(
    compiled: bool, model: Model, text: str, wording: float
) -> None:
    scorer = Scorer.of_model(pack(model), compiled=compiled)
    scored = scorer.score(RequestView(text))
    assert scorer.benefit(scored.features) == wording
    assert scorer.score_features(scored.features) == scored.score


def test_a_model_scores_by_its_words(compiled: bool, model: Model) -> None:
    scorer = Scorer.of_model(pack(model), compiled=compiled)
    found = scorer.score(RequestView.of_prompt("a needle"))
    assert found.score > scorer.score(RequestView.of_prompt("a haystack")).score == 0.5
    assert found.reasons == ("wording=+0.95",)
    assert scorer.name == f"linear-{fingerprint(pack(model))[:12]}"


def test_reasons_hold_nothing_of_the_prompt(compiled: bool) -> None:
    for reason in Scorer(compiled=compiled).score(HARD).reasons:
        assert reason.split("=")[0] in (*SIGNALS, "wording")
        assert " " not in reason


def test_a_file_is_read_as_it_was_written(model: Model) -> None:
    assert unpack(pack(model)) == model
    assert pack(unpack(pack(model))) == pack(model)


def test_quantiles_are_thresholds_of_shares() -> None:
    quantiles = Scorer().quantiles
    assert len(quantiles) == 101
    assert list(quantiles) == sorted(quantiles)
    assert quantiles[50] == pytest.approx(0.5)


def damaged(data: bytes) -> dict[str, bytes]:
    header, _, table = data.partition(b"\n")
    infinite = array("f", [float("inf")] * BUCKETS)
    return {
        "empty": b"",
        "text": b"hello\n",
        "no table": header + b"\n",
        "cut": data[:-9],
        "version": data.replace(b'"version":1', b'"version":2', 1),
        "features": data.replace(b'"features":2', b'"features":9', 1),
        "signal": data.replace(b'"maths"', b'"mathz"'),
        "scale": data.replace(b'"scale":0.5', b'"scale":0.0'),
        "quantiles": data.replace(b'"quantiles":[', b'"quantiles":[0.9,'),
        "flipped": header + b"\n" + bytes([table[0] ^ 0xFF]) + table[1:],
        "huge": pack(replace(unpack(data), bias=1e300)),
        "infinite": pack(replace(unpack(data), table=infinite)),
    }


def test_a_damaged_file_is_refused(model: Model) -> None:
    for name, data in damaged(pack(model)).items():
        with pytest.raises(InvalidModel):
            pytest.fail(f"{name} was taken: {unpack(data).labels}")


def test_a_model_of_older_features_is_refused_with_both_versions(model: Model) -> None:
    older = pack(model).replace(b'"features":2', b'"features":1', 1)
    with pytest.raises(InvalidModel, match="version: 1, features 1; 1, features 2 is read"):
        unpack(older)


def test_a_bomb_is_not_inflated(model: Model) -> None:
    bomb = pack(replace(model, table=array("f", bytes(400 * BUCKETS))))
    with pytest.raises(InvalidModel, match="table"):
        unpack(bomb)


def test_a_huge_prompt_costs_no_more_than_to_look_where_it_ends(compiled: bool) -> None:
    """In processor time, the least of several runs: others work on this machine too."""
    scorer = Scorer(compiled=compiled)
    content = "word 12 (other); " * 250_000
    body = msgspec.json.encode({"messages": [{"role": "user", "content": content}]})
    members = decode_object(body)

    def least(work: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            begun = time.process_time()
            for _ in range(5):
                work()
            times.append(time.process_time() - begun)
        return min(times)

    assert least(lambda: scorer.read(members)) < 3 * least(lambda: decode_object(body))


def test_scoring_does_without_numpy() -> None:
    code = "import sys, sluice.router.complexity.scorer; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
