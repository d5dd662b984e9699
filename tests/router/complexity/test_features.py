"""Hashed features: stable, bounded, without the text."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from hashlib import sha256

import pytest

from sluice.router.complexity import features
from sluice.router.complexity.features import BUCKETS, signals_of, words_of
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView

Extract = Callable[[RequestView], bytes]
Signals = Callable[[str], dict[str, int]]


@pytest.fixture(name="extract")
def make_extract(compiled: bool) -> Extract:
    scorer = Scorer(compiled=compiled)
    return (lambda view: scorer.score(view).features) if compiled else features.extract


@pytest.fixture(name="signals")
def make_signals(extract: Extract) -> Signals:
    def signals(text: str) -> dict[str, int]:
        found = signals_of(extract(RequestView.of_prompt(text)))
        return dict(zip(SIGNALS, found, strict=True))

    return signals


def test_features_are_the_same_in_every_process_and_release(extract: Extract) -> None:
    """Stored features and model files depend on them: a change needs another version."""
    found = extract(RequestView("Add 2 and 3.", length=42, system="Be kind."))
    assert found.hex() == (
        "02004500000000aa0000000000000000000000"
        "007a000042e200006d9b01000dbe0100e5660200e77302009b8e020049ad020011c00200a5d30200"
    )


MANY = "Solve x^2 = 4; prove it.\n\n```\ndef f(): return {'a_b': 1 == 2}\n``` √∫ Ωé 漢字 3 times 12"


@pytest.mark.parametrize(
    ("view", "signals", "digest"),
    [
        (RequestView(""), "0000000000000000000000000000ff000000", "50d80d11b3b520f7"),
        (
            RequestView("Who sang in that band?", 52),
            "004900000000000000000000009900000000",
            "a7eaa1f85b6096c4",
        ),
        (
            RequestView(MANY, 300, "Be brief.", 5, True, True, True),
            "4369764daaaadb555500000000001bffffff",
            "d3d7942819affc7f",
        ),
        (
            RequestView("why must the total price of 7 be less? " * 25, 1_030),
            "ff8000000000f49955003300000000000000",
            "d77cec1f6a2b79a1",
        ),
    ],
)
def test_all_of_the_features_are(
    extract: Extract, view: RequestView, signals: str, digest: str
) -> None:
    found = extract(view)
    assert signals_of(found).hex() == signals
    assert sha256(found).hexdigest().startswith(digest)


def test_words_and_pairs_are_distinct_and_ascending(extract: Extract) -> None:
    words = words_of(extract(RequestView.of_prompt("the cat the cat the cat")))
    assert list(words) == sorted(set(words))
    assert len(words) == 4
    assert max(words) < BUCKETS


def test_case_is_of_no_account_but_order_is(extract: Extract) -> None:
    first, second, third = (
        list(words_of(extract(RequestView.of_prompt(text))))
        for text in ("Dog bites man", "dog BITES man", "man bites dog")
    )
    assert first == second != third


def test_scripts_without_spaces_are_taken_by_character(extract: Extract) -> None:
    whole = set(words_of(extract(RequestView.of_prompt("证明素数有无穷多个"))))
    assert set(words_of(extract(RequestView.of_prompt("素数")))) <= whole


@pytest.mark.parametrize(
    "alphabet", [string.punctuation + " ", "ab ", string.printable, "证é\x00 "]
)
def test_any_text_has_bounded_features(extract: Extract, alphabet: str) -> None:
    draw = random.Random(1)
    for size in (0, 1, 1_000, 50_000):
        found = extract(RequestView.of_prompt("".join(draw.choices(alphabet, k=size))))
        assert len(found) <= 19 + 4 * 2 * 220


def test_lone_surrogates_are_scored_too(extract: Extract) -> None:
    assert extract(RequestView.of_prompt("a \ud800 b"))


@pytest.mark.parametrize(
    "bad",
    [b"", b"\x02", b"\x01" + bytes(18), b"\x02" + bytes(19), b"\x02" + bytes(18) + b"\xff" * 4],
)
def test_other_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="no features"):
        words_of(bad)


def test_listed_answers_are_not_part_of_the_questions_length(signals: Signals) -> None:
    question = "Which of these rivers ends in the sea that is named after a colour?"
    listed = "\n(a) the Danube, which is long\n(b) the Rhine\n(c) the Rhone\n"
    assert signals(question + listed)["length"] == signals(question)["length"]
    two = "\nA) the Danube\nB) the Rhine"
    assert signals(question + two)["choices"] == 0
    assert signals(question + two)["length"] > signals(question)["length"]


def test_signals_tell_kinds_of_text_apart(signals: Signals) -> None:
    maths = signals("Solve the equation $x^2 = 4x - 3$ and prove the theorem for a polynomial.")
    code = signals(
        "```python\ndef f(x_1):\n    return {x_1: 3};\n```\nWhat does f_2(3) == {} return?"
    )
    trivia = signals("Who sang in the band when it was founded?")
    prose = signals("Each day she sells 4 cakes for 3 dollars. How much does she earn in a week?")
    exam = signals("Which is a prime?\nA. 4\nB. 6\nC. 7\nD. 9")
    assert exam["choices"] == 255
    assert maths["choices"] == trivia["choices"] == 0
    assert signals("He left because it rained, although he had time.")["connectives"] > 100
    assert maths["maths"] > max(code["maths"], trivia["maths"], prose["maths"])
    assert code["code"] > max(maths["code"], trivia["code"], prose["code"])
    assert trivia["factual"] > max(maths["factual"], code["factual"], prose["factual"])
    assert prose["quantities"] > max(maths["quantities"], trivia["quantities"])
