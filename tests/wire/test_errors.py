"""Errors: the family's shapes become one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.errors import ErrorDetail, InvalidRequest, read_error
from tests.wire.pieces import deep, json_values


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}},
            ErrorDetail("m", "t", "p", "c"),
        ),
        ({"error": {"message": "m", "code": 400}}, ErrorDetail("m", code="400")),
        ({"error": {"message": "m", "type": None}}, ErrorDetail("m")),
        ({"error": {}}, ErrorDetail("unspecified error")),
        ({"error": "Unauthorized"}, ErrorDetail("Unauthorized")),
        ({"detail": "Not Found"}, ErrorDetail("Not Found")),
        ({"detail": [{"msg": "x"}]}, ErrorDetail('[{"msg":"x"}]')),
        ({"message": "m", "code": 7}, ErrorDetail("m", code="7")),
        ({"object": "error", "message": "m", "type": "T"}, ErrorDetail("m", "T")),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
         ErrorDetail("Overloaded", "overloaded_error")),
    ],
)  # fmt: skip
def test_every_shape_of_the_family_is_read(body: Any, detail: ErrorDetail) -> None:
    assert read_error(json.dumps(body).encode()) == detail


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>502</html>",
        b"null",
        b"[]",
        b"1",
        b"{}",
        b'{"message":1}',
        b'{"error":null}',
        b'{"error":1}',
        b'{"error":{"message":"\xff"}}',
        b'{"error":{"message":"x","code":1' + b"0" * 5000 + b"}}",
        b'{"error":' + deep() + b"}",
        b'{"error":{"message":' + deep() + b"}}",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_no_error(data: bytes) -> None:
    assert read_error(data) is None


@pytest.mark.parametrize("depth", range(900, 1000, 2))
def test_nesting_near_the_limit_never_raises(depth: int) -> None:
    for form in (b'{"error":{"message":%s}}', b'{"error":%s}', b'{"detail":{"code":%s}}'):
        read_error(form % deep(depth))


@settings(deadline=None, max_examples=200)
@given(value=json_values, name=st.sampled_from(["error", "detail", "message"]))
def test_any_json_gives_one_shape_or_none(value: Any, name: str) -> None:
    for body in (value, {name: value}, {"error": {name: value, "code": value, "param": value}}):
        detail = read_error(json.dumps(body).encode())
        if detail is not None:
            inner = json.loads(detail.body())["error"]
            assert list(inner) == ["message", "type", "param", "code"]
            assert isinstance(inner["message"], str)
            assert isinstance(inner["code"], str | None)


def test_nulls_are_written_out() -> None:
    assert ErrorDetail("a\x00é").body() == (
        b'{"error":{"message":"a\\u0000\xc3\xa9","type":"server_error","param":null,"code":null}}'
    )


def test_an_invalid_request_has_a_reason() -> None:
    assert InvalidRequest("x", "p").code == "invalid_value"
