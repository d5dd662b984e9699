"""Objects edited at their top level, byte-exact below it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.objects import MalformedJSON, decode_object, encode, raw
from tests.wire.pieces import deep, json_values


@settings(deadline=None, max_examples=200)
@given(
    value=st.dictionaries(st.text(max_size=6), json_values, max_size=5),
    ascii_=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_values_keep_their_bytes(value: dict[str, Any], ascii_: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent).encode()
    members = decode_object(text)
    assert list(members) == list(value)
    assert all(bytes(part) in text for part in members.values())
    assert json.loads(encode(members)) == value


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a":1', b'{"a"}', b'{"a":"\xed\xa0\x80"}', b"{1:2}", b"{}{}"]
)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedJSON):
        decode_object(data)


@pytest.mark.parametrize("data", [b'{"a":%s}' % deep(), b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_deep_nesting_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedJSON, match="nested too deeply"):
        decode_object(data)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (rb"\ud800", rb"\ufffd"),
        (rb"x\uDE00y", rb"x\ufffdy"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\\ud800 \ud800", rb"\\ud800 \ufffd"),
        (rb"\ud83d\ude00", rb"\ud83d\ude00"),
    ],
)
def test_half_a_surrogate_pair_is_replaced_and_nothing_else(given: bytes, kept: bytes) -> None:
    assert bytes(decode_object(b'{"a":"%s"}' % given)["a"]) == b'"%s"' % kept


def test_an_edit_leaves_its_neighbours_alone() -> None:
    members = decode_object(b'{"a": 1.0 ,"b":[1, 2],"c":"\\u00e9"}')
    members["a"] = raw("x")
    assert encode(members) == b'{"a":"x","b":[1, 2],"c":"\\u00e9"}'
