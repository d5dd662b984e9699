"""Keys, and text from which credentials are taken out: case 88."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.secrets import PREFIX, key_hash, key_hint, new_key, redactor

SECRET = "sk-provider-0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"Incorrect API key provided: {SECRET}. See https://x/",
        f"POST https://h/v1/chat?key={SECRET} failed",
        f"{SECRET}{SECRET} {SECRET}",
        f'{{"headers":{{"authorization":"Bearer {SECRET}"}}}}',
        f"Authorization: bearer {SECRET}",
    ],
)
def test_case_88_a_known_secret_never_stays(text: str) -> None:
    redacted = redactor([SECRET])(text)
    assert SECRET not in redacted
    assert "[redacted]" in redacted


@pytest.mark.parametrize(
    "text",
    [
        "GET https://h/v1?key=UNKNOWN-1",
        "https://h/v1?a=1&api_key=UNKNOWN-1&b=2",
        "https://h/v1?api-key=UNKNOWN-1 failed",
        "https://h/v1?apikey=UNKNOWN-1'",
        '"https://h/v1?access_token=UNKNOWN-1"',
        "https://h?TOKEN=UNKNOWN-1",
        "https://h?x=1&secret=UNKNOWN-1",
        "Bearer UNKNOWN-1",
        "authorization: BEARER  UNKNOWN-1",
    ],
)
def test_case_88_what_looks_like_a_credential_goes_too(text: str) -> None:
    assert "UNKNOWN-1" not in redactor([])(text)


def test_what_surrounds_a_credential_stays() -> None:
    text = "https://h/v1?a=1&key=XYZ&b=2 said no"
    assert redactor([])(text) == "https://h/v1?a=1&key=[redacted]&b=2 said no"


@pytest.mark.parametrize(
    "text", ["", "the key is missing", "bearer of news", "max_tokens=5", "é\x00"]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redactor([SECRET])(text) == text


@pytest.mark.parametrize("known", [["abcdefgh", "abcdefgh-long"], ["abcdefgh-long", "abcdefgh"]])
def test_a_secret_that_begins_like_another_is_taken_out_whole(known: list[str]) -> None:
    assert redactor(known)("x abcdefgh-long y abcdefgh") == "x [redacted] y [redacted]"


@given(
    secret=st.text(alphabet="abcXYZ012-_.", min_size=12),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_any_secret_anywhere_goes(secret: str, before: str, after: str) -> None:
    assert secret not in redactor([secret])(before + secret + after)


def test_the_redactor_takes_linear_time() -> None:
    text = "?key=" * 100_000 + "bearer " * 100_000
    assert len(redactor([SECRET])(text)) > 0


def test_keys_are_new_long_and_recognisable() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(re.escape(PREFIX) + r"[\w-]{43}", key) for key in keys)


def test_a_hash_says_nothing_and_is_stable() -> None:
    assert key_hash("a") != key_hash("A")
    assert len(key_hash(new_key())) == 32
    assert key_hash("é") == key_hash("é")


def test_a_hint_shows_eight_characters_at_most() -> None:
    key = new_key()
    assert key_hint(key) == f"{key[:14]}…{key[-4:]}"
    assert key_hint("other-key-of-32-characters-0000x") == "othe…000x"
