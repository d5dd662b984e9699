"""Whole answers: renamed, metered, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.answer import UNREADABLE, Answer, read_answer
from sluice.wire.embeddings import Encoding
from sluice.wire.errors import ErrorDetail
from sluice.wire.usage import Usage
from tests.wire.pieces import deep, json_values

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
CHAT = {"model": "m", "choices": [{"message": {"content": "four"}}], "usage": USAGE}


def read(body: Any, model: str = "m", **more: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = read_answer(data, model, 8, **more)
    assert isinstance(answer, Answer), answer
    return answer


def test_an_answer_under_its_own_name_passes_byte_for_byte() -> None:
    data = b'{ "model":"m", "choices":[ {"a":1.50,"a":2} ], "x":1000000000000000000000000 }'
    assert read(data).body == data


def test_only_the_top_level_name_changes() -> None:
    body = {**CHAT, "x": {"model": "m"}, "choices": [{"text": '"model":"m"'}]}
    assert json.loads(read(body, "alias").body) == {**body, "model": "alias"}


def test_a_missing_name_is_filled_in() -> None:
    assert json.loads(read(b'{"choices":[]}').body)["model"] == "m"


def test_usage_is_read() -> None:
    assert read(CHAT).usage == Usage(11, output_tokens=7)


@pytest.mark.parametrize("usage", [{}, {"usage": None}])
def test_case_22_missing_usage_is_estimated(usage: dict[str, Any]) -> None:
    found = read({"model": "m", "choices": [{"text": "four"}], **usage}).usage
    assert found.estimated
    assert found.input_tokens == 2
    assert found.output_tokens >= 1


def test_embeddings_generate_nothing() -> None:
    assert read({"model": "m", "data": []}).usage == Usage(2, estimated=True)


def test_embeddings_come_in_the_encoding_asked_for() -> None:
    body = {"model": "m", "data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 3}}
    answer = read(body, encoding="base64")
    assert json.loads(answer.body)["data"][0]["embedding"] == "AACAPw=="
    assert answer.usage == Usage(3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>busy</html>",
        b"null",
        b"[]",
        b"{}",
        b'{"model":"m"}',
        b'{"choices":[],"usage":[]}',
        b'{"choices":[],"usage":{"prompt_tokens":"many"}}',
        b'{"choices":[],"x":"\xff"}',
        b'{"choices":[',
        b'{"choices":' + deep() + b"}",
        b'{"choices":[],"usage":{"prompt_tokens_details":' + deep() + b"}}",
        b'{"error":' + deep() + b"}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_unreadable(data: bytes) -> None:
    assert read_answer(data, "m", 0) == UNREADABLE


@pytest.mark.parametrize("data", [b"null", b"[1]", b'[{"embedding":"A"}]', b"[" * 99_999, b"{}"])
def test_malformed_vectors_are_unreadable(data: bytes) -> None:
    assert read_answer(b'{"data":' + data + b"}", "m", 0, "float") == UNREADABLE


def test_a_chat_in_place_of_vectors_is_unreadable() -> None:
    assert read_answer(json.dumps(CHAT).encode(), "m", 0, "float") == UNREADABLE


def test_case_37_an_error_under_a_200_is_an_error() -> None:
    error = read_answer(b'{"error":{"message":"busy","code":503},"choices":[]}', "m", 0)
    assert error == ErrorDetail("busy", code="503")


def test_a_null_error_is_none() -> None:
    read({**CHAT, "error": None})


@pytest.mark.parametrize("depth", range(900, 1000, 3))
def test_nesting_near_the_limit_never_raises(depth: int) -> None:
    for name in (b"usage", b"error", b"choices", b"data"):
        read_answer(b'{"choices":[],"%s":%s}' % (name, deep(depth)), "alias", 0, "base64")


@settings(deadline=None, max_examples=200)
@given(
    body=st.dictionaries(
        st.sampled_from(["model", "choices", "data", "usage", "error", "x"]), json_values
    )
    | json_values
)
def test_no_json_raises(body: Any) -> None:
    data = json.dumps(body).encode()
    encodings: list[Encoding | None] = [None, "float", "base64"]
    for encoding in encodings:
        read_answer(data, "m", 0, encoding)


@settings(deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_raise(data: bytes) -> None:
    read_answer(data, "m", 0)
    read_answer(b'{"data":' + data + b"}", "m", 0, "base64")


def test_moderations_are_answers() -> None:
    body = b'{"id":"modr-1","model":"omni","results":[{"flagged":false}]}'
    answer = read_answer(body, "alias", 40)
    assert isinstance(answer, Answer)
    assert json.loads(answer.body) == {
        "id": "modr-1",
        "model": "alias",
        "results": [{"flagged": False}],
    }
