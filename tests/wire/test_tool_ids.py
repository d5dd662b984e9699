"""Ids of tool calls on their way between clients and upstreams."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request, read_request
from sluice.wire.tool_ids import chat_tool_id, short_id, toolu_id, with_short_ids

LONG = "chatcmpl-tool-" + "a" * 32


@given(st.text(min_size=1))
def test_c34_any_id_comes_back(id: str) -> None:
    theirs = toolu_id(id)
    assert re.fullmatch(r"toolu_[A-Za-z0-9_-]+", theirs)
    assert chat_tool_id(theirs) == id


@given(st.text(), st.text())
def test_two_ids_never_become_one(one: str, other: str) -> None:
    if one != other:
        ours = [short_id(chat_tool_id(f"toolu_q_{id}")) for id in (one, other)]
        assert ours[0] != ours[1]


@pytest.mark.parametrize("id", ["toolu_01D7FLrfh4GYq7yT1ULFeyMV", "toolu_q_!", "toolu_p_", "x"])
def test_foreign_ids_pass(id: str) -> None:
    assert short_id(chat_tool_id(id)) == id


@pytest.mark.parametrize("id", [LONG, "b" * 46, "é" * 41, "\ud800" * 41])
def test_c33_long_ids_become_short_ones(id: str) -> None:
    assert len(short_id(id)) <= 40
    assert short_id(id) == short_id(id)


def talk(*messages: Any) -> Request:
    return read_request(json.dumps({"model": "m", "messages": messages}).encode(), "messages")


def called(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_c33_calls_and_results_stay_pairs() -> None:
    results = [{"role": "tool", "tool_call_id": id, "content": "1"} for id in (LONG, "call_1")]
    request = with_short_ids(
        talk({"role": "user", "content": "hi"}, called(LONG, "call_1"), *results)
    )
    _, turn, first, second = json.loads(bytes(request.members["messages"]))
    assert [call["id"] for call in turn["tool_calls"]] == [short_id(LONG), "call_1"]
    assert [each["tool_call_id"] for each in (first, second)] == [short_id(LONG), "call_1"]


def test_what_has_no_long_id_is_not_touched() -> None:
    request = talk({"role": "user", "content": LONG}, called("call_1"))
    assert with_short_ids(request) is request


def test_what_cannot_be_read_names_its_parameter() -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_short_ids(talk({"role": "assistant", "tool_calls": {"id": LONG}}))
    assert refused.value.param == "tool_calls"
