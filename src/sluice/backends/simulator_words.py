"""The simulator's tokenizer: tokens are words, and those of token arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

#: Members whose strings are no part of a prompt.
_MARKS = ("role", "type")


def count_words(value: Any) -> int:
    """Words in all the strings of a JSON value; token arrays count their tokens."""
    if isinstance(value, str):
        return len(value.split())
    if isinstance(value, list):
        return sum(1 if isinstance(item, int) else count_words(item) for item in value)
    if isinstance(value, dict):
        return sum(count_words(item) for key, item in value.items() if key not in _MARKS)
    return 0


def words_of(value: Any) -> Iterator[str]:
    """Those words themselves, in order."""
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, list):
        yield from chain.from_iterable(
            (str(item),) if isinstance(item, int) else words_of(item) for item in value
        )
    elif isinstance(value, dict):
        parts = (item for key, item in value.items() if key not in _MARKS)
        yield from chain.from_iterable(map(words_of, parts))


def block_hashes(words: Sequence[str], block_size: int) -> list[bytes]:
    """One for each full block of words, that stands for it and all before it."""
    digest, hashes = b"", []
    for end in range(block_size, len(words) + 1, block_size):
        text = "\0".join(words[end - block_size : end])
        digest = blake2b(digest + text.encode(), digest_size=16).digest()
        hashes.append(digest)
    return hashes
