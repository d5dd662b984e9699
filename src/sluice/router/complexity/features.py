"""A request as hashed features: what is scored, stored and trained on.

`Scored.features` is a version byte, the signals (one byte each), and the distinct words and
pairs of neighbouring words, each hashed to 18 bits. The text can't be read out of them, but a
guess at a text can be checked against them: they are as confidential as prompts are.
"""

from __future__ import annotations

import re
import sys
from array import array
from itertools import chain
from zlib import crc32

from sluice.router.complexity.signals import SIGNALS, count_signals
from sluice.router.complexity.view import RequestView

VERSION = 2
#: Size of the table of weights; a power of two.
BUCKETS = 1 << 18
_MASK = BUCKETS - 1
_HEAD = 1 + len(SIGNALS)
_WORD_BYTES = 4
_VERSION = bytes((VERSION,))

# Runs of letters and digits of alphabets, runs of symbols, single characters of other scripts;
# of UTF-8, because CRCs take bytes.
_TOKEN = re.compile(
    rb"[a-z0-9\xc2-\xe1\x80-\xbf]++|[^\sa-z0-9\x80-\xff]++|[\xe2-\xf4][\x80-\xbf]*+"
)
#: Words that are looked at, of the beginning and of the end: a text of single letters has one
#: for every two characters.
_FIRST, _LAST = 70, 150
#: Where the hash of the system message begins, so that it is not that of a word.
_SYSTEM_SEED = 0x5353


def extract(view: RequestView) -> bytes:
    """The features of a request."""
    return packed(*seen(view))


def seen(view: RequestView) -> tuple[bytes, list[int]]:
    """What features are made of: the signals, and the hashed words, ascending and distinct."""
    text = view.text.lower().encode("utf-8", "replace")
    tokens: list[bytes] = _TOKEN.findall(text)
    if len(tokens) > _FIRST + _LAST:
        tokens = tokens[:_FIRST] + tokens[-_LAST:]
    signals = count_signals(view, text, tokens)
    singles = list(map(crc32, tokens))
    # The CRC of a word continued with the next one's bytes stands for the pair.
    hashes = chain(singles, map(crc32, tokens[1:], singles))
    found = {value & _MASK for value in hashes}
    if view.system:
        found.add(crc32(view.system.encode("utf-8", "replace"), _SYSTEM_SEED) & _MASK)
    return signals, sorted(found)


def packed(signals: bytes, words: list[int]) -> bytes:
    """The features of what was seen."""
    return _VERSION + signals + _little_endian(array("I", words)).tobytes()


def signals_of(features: bytes) -> bytes:
    """The signals, a byte each, in the order of `SIGNALS`.

    Raises:
        ValueError: no features, or of another version.
    """
    if len(features) < _HEAD or (len(features) - _HEAD) % _WORD_BYTES or features[0] != VERSION:
        raise ValueError("these are no features of this version")
    return features[1:_HEAD]


def words_of(features: bytes) -> array[int]:
    """The hashed words, ascending and distinct, each below `BUCKETS`.

    Raises:
        ValueError: no features, or of another version.
    """
    signals_of(features)
    words = array("I")
    words.frombytes(features[_HEAD:])
    _little_endian(words)
    if words and words[-1] >= BUCKETS:
        raise ValueError("these are no features of this version")
    return words


def _little_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words
