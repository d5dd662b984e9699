"""Embeddings: inputs, limits, and vectors in both encodings."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.embeddings import MAX_INPUTS, check_embeddings, encode_items
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import read_request


def check(**members: Any) -> str:
    data = json.dumps({"model": "m", **members}).encode()
    return check_embeddings(read_request(data, "input"))


def refused(**members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check(**members)
    return caught.value


@pytest.mark.parametrize("value", ["x", ["a", "b"], [[1], [2, 3]], ["x"] * MAX_INPUTS])
def test_every_form_of_an_input_is_taken(value: Any) -> None:
    assert check(input=value) == "float"


def test_case_62_an_array_of_tokens_is_one_input() -> None:
    assert check(input=[15339, 1917]) == "float"
    assert check(input=[1] * (MAX_INPUTS + 1)) == "float"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        [],
        [""],
        ["a", ""],
        [[]],
        [[1], []],
        1,
        {},
        [1, "a"],
        ["a", 1],
        ["a", [1]],
        [1, [1]],
        [["a"]],
        [[[1]]],
        [1.5],
        [None],
        ["x"] * (MAX_INPUTS + 1),
    ],
)
def test_anything_else_names_the_input(value: Any) -> None:
    assert refused(input=value).param == "input"


def test_a_missing_input_is_said_to_be_required() -> None:
    assert refused().code == "missing_required_parameter"


@pytest.mark.parametrize(("given_", "encoding"), [("float", "float"), ("base64", "base64")])
def test_the_encoding_asked_for_is_known(given_: str, encoding: str) -> None:
    assert check(input="x", encoding_format=given_) == encoding


@pytest.mark.parametrize("value", ["int8", 1, "BASE64", [], "f64"])
def test_case_60_an_unknown_encoding_is_refused(value: Any) -> None:
    assert refused(input="x", encoding_format=value).param == "encoding_format"


def test_a_stream_is_refused() -> None:
    assert refused(input="x", stream=True).param == "stream"


def items(*vectors: Any) -> bytes:
    return json.dumps(
        [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    ).encode()


def converted(data: bytes, encoding: Any) -> list[dict[str, Any]]:
    out = encode_items(data, encoding)
    assert out is not None
    value: list[dict[str, Any]] = json.loads(out)
    return value


floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20)


@settings(deadline=None)
@given(vectors=st.lists(floats, max_size=4))
def test_case_59_vectors_survive_there_and_back(vectors: list[list[float]]) -> None:
    data = items(*vectors)
    packed = encode_items(data, "base64")
    if packed is None:
        assert not vectors
        return
    for item, vector in zip(json.loads(packed), vectors, strict=True):
        assert base64.b64decode(item["embedding"]) == struct.pack(f"<{len(vector)}f", *vector)
    back = encode_items(packed, "float")
    assert back is not None
    assert [item["embedding"] for item in json.loads(back)] == vectors


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_what_is_right_already_is_left_alone(encoding: Any) -> None:
    vector: Any = [0.1, 2] if encoding == "float" else "AACAPw=="
    assert encode_items(items(vector), encoding) is None


def test_mixed_encodings_become_one() -> None:
    out = converted(items([1.0], "AACAPw=="), "float")
    assert [item["embedding"] for item in out] == [[1.0], [1.0]]


def test_indexes_are_kept_and_missing_ones_counted() -> None:
    out = converted(b'[{"index":5,"embedding":[1]},{"embedding":[2]}]', "base64")
    assert [item["index"] for item in out] == [5, 1]


@pytest.mark.parametrize("data", [b"{}", b'[{"embedding":null}]', b"[1]", b'[{"embedding":[[1]]}]'])
def test_a_malformed_answer_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        encode_items(data, "base64")


@pytest.mark.parametrize("vector", ["!", "AAA=", "AAAAAAA=", "é"])
def test_malformed_base64_is_a_value_error(vector: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind
        encode_items(items(vector), "float")
