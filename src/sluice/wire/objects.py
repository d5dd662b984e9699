"""JSON objects edited at their top level, with every value kept as the bytes it came in.

A gateway must not disturb what it doesn't own. Decoding an object to raw values and encoding it
again leaves each value byte-exact, costs no more than a scan of the text, and works for values
that no Python type carries well (big numbers, lone surrogates, duplicate inner keys).
"""

from __future__ import annotations

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
        return _decoder.decode(text)
    except RecursionError:
        raise MalformedJSON("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise MalformedJSON(str(error)) from None


def encode(value: Any) -> bytes:
    """Encode a value (raw parts are copied as they are) to JSON bytes."""
    return _encoder.encode(value)


def raw(value: Any) -> msgspec.Raw:
    """A value as a raw part."""
    return msgspec.Raw(_encoder.encode(value))
