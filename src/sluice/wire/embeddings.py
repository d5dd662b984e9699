"""Embeddings: what may be asked, and vectors turned into the encoding that was asked for."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Literal

import msgspec

from sluice.wire.errors import InvalidRequest
from sluice.wire.objects import encode
from sluice.wire.request import Request, member, texts

MAX_INPUTS = 2048

Encoding = Literal["float", "base64"]
#: msgspec takes one array type in a union; `check_embeddings` sees that items are of one kind.
Input = str | list[str | int | list[int]]


class Item(msgspec.Struct):
    """One vector, as floats or as base64 of little-endian float32."""

    embedding: list[float] | str
    index: int | None = None
    object: str = "embedding"


def check_embeddings(request: Request) -> Encoding:
    """Refuse inputs that no upstream takes; give the encoding that the client wants.

    Raises:
        InvalidRequest: naming the member.
    """
    encoding = member(request.members, "encoding_format", str) or "float"
    if encoding not in ("float", "base64"):
        raise InvalidRequest("`encoding_format` must be float or base64", "encoding_format")
    if request.stream:
        raise InvalidRequest("embeddings have no stream", "stream", "unsupported_parameter")
    inputs = texts(request.members, "input")
    if not inputs:
        raise InvalidRequest("`input` must not be empty", "input")
    if len({type(item) for item in inputs}) > 1:
        raise InvalidRequest("`input` mixes strings and tokens", "input")
    if isinstance(inputs[0], int):  # the tokens of one text
        return "base64" if encoding == "base64" else "float"
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest(f"`input` has {len(inputs)} items, at most {MAX_INPUTS}", "input")
    for position, item in enumerate(inputs):
        if not item:
            raise InvalidRequest(f"`input[{position}]` is empty", "input")
    return "base64" if encoding == "base64" else "float"


def encode_items(data: bytes, encoding: Encoding) -> bytes | None:
    """The `data` member in the wanted encoding; None when it is in that encoding already.

    Raises:
        InvalidRequest: never; a malformed answer raises `msgspec.DecodeError`.
    """
    items = msgspec.json.decode(data, type=list[Item])
    wanted = str if encoding == "base64" else list
    if all(isinstance(item.embedding, wanted) for item in items):
        return None
    convert = _to_base64 if encoding == "base64" else _to_floats
    for position, item in enumerate(items):
        item.embedding = convert(item.embedding)
        item.index = position if item.index is None else item.index
    return encode(items)


def _to_base64(vector: list[float] | str) -> str:
    if isinstance(vector, str):
        return vector
    return base64.b64encode(_little_endian(array("f", vector)).tobytes()).decode()


def _to_floats(vector: list[float] | str) -> list[float]:
    if not isinstance(vector, str):
        return vector
    floats = array("f", base64.b64decode(vector, validate=True))
    return list(_little_endian(floats))


def _little_endian(floats: array[float]) -> array[float]:
    if sys.byteorder == "big":
        floats.byteswap()
    return floats
