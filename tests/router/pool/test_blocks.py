"""Prompts as chains of hashes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.router.pool.blocks import BLOCK_BYTES, block_hashes, isolation_salt

SALT = isolation_salt(b"secret", "team")

texts = st.binary(max_size=200)


def test_one_hash_for_each_full_block() -> None:
    assert block_hashes(b"x" * (BLOCK_BYTES - 1), SALT) == ()
    assert len(block_hashes(b"x" * (3 * BLOCK_BYTES + 1), SALT)) == 3


def test_the_hashes_are_the_same_in_every_process_and_release() -> None:
    assert block_hashes(b"ab" * 8, 7, block_bytes=8) == (14591442237107986248, 1913185345540596600)


@given(texts, texts, texts)
def test_two_prompts_agree_as_far_as_their_text_does(
    common: bytes, one: bytes, other: bytes
) -> None:
    left, right = common + one, common + other
    hashes = [block_hashes(text, SALT, block_bytes=8) for text in (left, right)]
    agree = 0
    while left[: 8 * agree + 8] == right[: 8 * agree + 8] and agree < min(map(len, hashes)):
        agree += 1
    assert hashes[0][:agree] == hashes[1][:agree]
    assert not set(hashes[0][agree:]) & set(hashes[1][agree:])


@given(texts.filter(lambda text: len(text) >= 8))
def test_isolated_scopes_share_nothing(text: bytes) -> None:
    other = isolation_salt(b"secret", "other team")
    mine = block_hashes(text, SALT, block_bytes=8)
    assert not set(mine) & set(block_hashes(text, other, block_bytes=8))


def test_a_salt_needs_the_secret() -> None:
    assert isolation_salt(b"secret", "team") == SALT
    assert isolation_salt(b"another", "team") != SALT
