"""C22: functions, which came before tools, for upstreams that know tools only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire import sse
from sluice.wire.anthropic_profile import profile_of
from sluice.wire.anthropic_request import to_messages
from sluice.wire.errors import InvalidRequest
from sluice.wire.functions import (
    FunctionCallStream,
    as_function_call,
    as_tools,
    offers_functions,
)
from sluice.wire.objects import MalformedJSON
from sluice.wire.request import Request, check_chat, read_request
from tests.wire.pieces import json_values

USER = {"role": "user", "content": "hi"}
F = {"name": "f", "parameters": {"type": "object"}}
CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "function", "name": "f", "content": "1"}


def request(**members: Any) -> Request:
    body = {"model": "m", "messages": [USER], "max_tokens": 9, **members}
    return read_request(json.dumps(body).encode(), "messages")


def translated(**members: Any) -> dict[str, Any]:
    return {
        name: json.loads(bytes(value))
        for name, value in as_tools(request(**members)).members.items()
    }


def refused(**members: Any) -> str | None:
    with pytest.raises(InvalidRequest) as error:
        as_tools(request(**members))
    return error.value.param


def test_functions_are_tools_called_one_at_a_time() -> None:
    body = translated(functions=[F], function_call={"name": "f"})
    assert body["tools"] == [{"type": "function", "function": F}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["parallel_tool_calls"] is False
    assert not body.keys() & {"functions", "function_call"}


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_the_choice(choice: str) -> None:
    assert translated(functions=[F], function_call=choice)["tool_choice"] == choice


def test_tools_beside_functions_are_offered_too() -> None:
    tool = {"type": "function", "function": {"name": "g"}}
    assert [t["function"]["name"] for t in translated(functions=[F], tools=[tool])["tools"]] == [
        "f", "g"
    ]  # fmt: skip


def test_calls_of_the_history_have_ids_that_stay() -> None:
    talk = [USER, CALL, RESULT, USER, CALL, RESULT]
    now = translated(functions=[F], messages=talk)["messages"]
    ids = [turn["tool_calls"][0]["id"] for turn in now if "tool_calls" in turn]
    assert ids == ["call_1", "call_4"]
    assert [t["tool_call_id"] for t in now if t["role"] == "tool"] == ids
    assert translated(functions=[F], messages=talk[:3])["messages"] == now[:3]


def test_a_history_alone_is_translated_and_its_answer_is_not() -> None:
    given = request(messages=[USER, CALL, RESULT])
    assert "tool_calls" in json.loads(bytes(as_tools(given).members["messages"]))[1]
    assert not offers_functions(given)


def test_nulls_say_nothing() -> None:
    """As the SDK's own messages have them when they are sent back."""
    said = {"role": "assistant", "content": "so", "function_call": None}
    body = translated(messages=[USER, said, USER], functions=None, function_call=None)
    assert body["messages"][1] == {"role": "assistant", "content": "so"}
    assert "tools" not in body


def test_what_says_nothing_of_functions_is_not_touched() -> None:
    given = request(tools=[])
    assert as_tools(given) is given


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"functions": [F], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [F], "function_call": "required"}, "function_call"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"functions": {}}, "functions"),
        ({"function_call": "f"}, "function_call"),
        ({"messages": [USER, CALL, {**RESULT, "name": "g"}]}, "messages[2].name"),
        ({"messages": [USER, CALL, RESULT, RESULT]}, "messages[3].name"),
        ({"messages": [USER, {**CALL, "function_call": {}}]}, "messages[1].function_call.name"),
    ],
)
def test_bad_requests_name_their_parameter(members: dict[str, Any], param: str) -> None:
    assert refused(**members) == param


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(("messages", "functions", "function_call")), json_values, max_size=3
    )
)
def test_anything_is_translated_or_refused(members: dict[str, Any]) -> None:
    try:
        given = request(**members)
        check_chat(given)
        to_messages(as_tools(given), profile_of("claude-opus-5"))
    except InvalidRequest:
        pass


def answer(said: dict[str, Any], finish: str) -> bytes:
    message = {"role": "assistant", "content": None, **said}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"id": "1", "choices": [choice]}).encode()


FUNCTION = {"name": "f", "arguments": "{}"}


def test_a_whole_answer() -> None:
    calls = [{"id": "1", "type": "function", "function": FUNCTION}]
    (choice,) = json.loads(
        as_function_call(answer({"tool_calls": calls, "function_call": None}, "tool_calls"))
    )["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "function_call": FUNCTION}
    assert choice["finish_reason"] == "function_call"


def test_an_answer_without_a_call() -> None:
    given = json.loads(answer({"content": "so", "tool_calls": []}, "stop"))
    (choice,) = json.loads(as_function_call(json.dumps(given).encode()))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "so"}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"choices":1}', b'{"choices":[{"message":1}]}'])
def test_an_answer_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(MalformedJSON):
        as_function_call(body)


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse.encode(json.dumps({"choices": [choice]}).encode())


def piece(index: int, **function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": function}]}


def test_a_stream_split_anywhere() -> None:
    data = (
        event({"role": "assistant", "content": ""})
        + event(piece(0, name="f", arguments=""))
        + event(piece(0, arguments="{}"))
        + event(piece(1, name="g", arguments="never"))
        + event({}, "tool_calls")
        + sse.encode(sse.DONE)
    )
    stream = FunctionCallStream()
    out = b"".join(stream.feed(data[place : place + 7]) for place in range(0, len(data), 7))
    events = [each.data for each in sse.Parser().feed(out + stream.tail())]
    assert events.pop() == sse.DONE
    choices = [json.loads(each)["choices"][0] for each in events]
    calls = [choice["delta"].get("function_call") for choice in choices]
    assert [call for call in calls if call] == [{"name": "f", "arguments": ""}, {"arguments": "{}"}]
    assert "tool_calls" not in out.decode()
    assert choices[-1]["finish_reason"] == "function_call"


def test_an_event_that_cannot_be_read_ends_the_stream() -> None:
    stream = FunctionCallStream()
    assert stream.feed(b'data: {"choices":[{"delta":{"tool_calls":1}}]}\n\n') == b""
    assert stream.failure is not None
    assert b"error" in stream.tail()
