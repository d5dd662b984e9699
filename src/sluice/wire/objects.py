"""JSON objects edited at their top level, with every value kept as the bytes it came in.

A gateway must not disturb what it doesn't own. Decoding an object to raw values and encoding it
again leaves each value byte-exact, costs no more than a scan of the text, and works for values
that no Python type carries well (big numbers, duplicate inner keys). The one exception: an escape
that is half of a surrogate pair stands for no character, and becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
RawObject = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(RawObject)
_encoder = msgspec.json.Encoder()


class MalformedJSON(ValueError):
    """The text is not a JSON object in UTF-8, or nests too deeply."""


def decode_object(text: bytes) -> RawObject:
    """Decode a JSON object to its raw top-level values.

    Raises:
        MalformedJSON: the text isn't a JSON object, isn't UTF-8, or nests too deeply to scan.
    """
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedJSON(f"not valid UTF-8 at byte {error.start}") from None
    try:
        return mended(_decoder, text)
    except RecursionError:
        raise MalformedJSON("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise MalformedJSON(str(error)) from None


def mended(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Decode a text; where that fails for half a surrogate pair, decode it without.

    Raises:
        msgspec.DecodeError, RecursionError: as the decoder does.
    """
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        if b"\\ud" not in text and b"\\uD" not in text:
            raise
        return decoder.decode(_ESCAPE.sub(_without_half, text))


#: An escape of a JSON string: a surrogate pair, half of one, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _without_half(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["half"] else escape[0]


def encode(value: Any) -> bytes:
    """Encode a value (raw parts are copied as they are) to JSON bytes."""
    return _encoder.encode(value)


def raw(value: Any) -> msgspec.Raw:
    """A value as a raw part."""
    return msgspec.Raw(_encoder.encode(value))
