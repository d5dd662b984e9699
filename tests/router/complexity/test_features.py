"""Hashed features: stable, bounded, without the text."""

from __future__ import annotations

import random
import string
from hashlib import sha256

import pytest

from sluice.router.complexity.features import BUCKETS, extract, signals_of, words_of
from sluice.router.complexity.signals import SIGNALS
from sluice.router.complexity.view import RequestView


def signals(text: str) -> dict[str, int]:
    return dict(zip(SIGNALS, signals_of(extract(RequestView.of_prompt(text))), strict=True))


def test_features_are_the_same_in_every_process_and_release() -> None:
    """Stored features and model files depend on them: a change needs another version."""
    found = extract(RequestView("Add 2 and 3.", length=42, system="Be kind."))
    assert found.hex() == (
        "0100450000000066000000000000000000"
        "007a000042e200006d9b01000dbe0100e5660200e77302009b8e020049ad020011c00200a5d30200"
    )


MANY = "Solve x^2 = 4; prove it.\n\n```\ndef f(): return {'a_b': 1 == 2}\n``` √∫ Ωé 漢字 3 times 12"


@pytest.mark.parametrize(
    ("view", "signals", "digest"),
    [
        (RequestView(""), "000000000000000000000000ff000000", "efdb9f10d27d98ad"),
        (
            RequestView("Who sang in that band?", 52),
            "00490000000000000000009900000000",
            "f53b9b24fee64a20",
        ),
        (
            RequestView(MANY, 300, "Be brief.", 5, True, True, True),
            "3c69764daaaaaa55550000001bffffff",
            "13e718fb5611c51f",
        ),
        (
            RequestView("why must the total price of 7 be less? " * 25, 1_030),
            "fd8000000000e4995500330000000000",
            "cf23cd5c2dde5b68",
        ),
    ],
)
def test_all_of_the_features_are(view: RequestView, signals: str, digest: str) -> None:
    found = extract(view)
    assert signals_of(found).hex() == signals
    assert sha256(found).hexdigest().startswith(digest)


def test_words_and_pairs_are_distinct_and_ascending() -> None:
    words = words_of(extract(RequestView.of_prompt("the cat the cat the cat")))
    assert list(words) == sorted(set(words))
    assert len(words) == 4
    assert max(words) < BUCKETS


def test_case_is_of_no_account_but_order_is() -> None:
    first, second, third = (
        list(words_of(extract(RequestView.of_prompt(text))))
        for text in ("Dog bites man", "dog BITES man", "man bites dog")
    )
    assert first == second != third


def test_scripts_without_spaces_are_taken_by_character() -> None:
    whole = set(words_of(extract(RequestView.of_prompt("证明素数有无穷多个"))))
    assert set(words_of(extract(RequestView.of_prompt("素数")))) <= whole


@pytest.mark.parametrize(
    "alphabet", [string.punctuation + " ", "ab ", string.printable, "证é\x00 "]
)
def test_any_text_has_bounded_features(alphabet: str) -> None:
    draw = random.Random(1)
    for size in (0, 1, 1_000, 50_000):
        found = extract(RequestView.of_prompt("".join(draw.choices(alphabet, k=size))))
        assert len(found) <= 17 + 4 * 2 * 320


def test_lone_surrogates_are_scored_too() -> None:
    assert extract(RequestView.of_prompt("a \ud800 b"))


@pytest.mark.parametrize(
    "bad",
    [b"", b"\x01", b"\x02" + bytes(16), b"\x01" + bytes(17), b"\x01" + bytes(16) + b"\xff" * 4],
)
def test_other_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="no features"):
        words_of(bad)


def test_signals_tell_kinds_of_text_apart() -> None:
    maths = signals("Solve the equation $x^2 = 4x - 3$ and prove the theorem for a polynomial.")
    code = signals(
        "```python\ndef f(x_1):\n    return {x_1: 3};\n```\nWhat does f_2(3) == {} return?"
    )
    trivia = signals("Who sang in the band when it was founded?")
    prose = signals("Each day she sells 4 cakes for 3 dollars. How much does she earn in a week?")
    assert maths["maths"] > max(code["maths"], trivia["maths"], prose["maths"])
    assert code["code"] > max(maths["code"], trivia["code"], prose["code"])
    assert trivia["factual"] > max(maths["factual"], code["factual"], prose["factual"])
    assert prose["quantities"] > max(maths["quantities"], trivia["quantities"])
