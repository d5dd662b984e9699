"""Responses requests: what is checked, what they are in chat, what is stored of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.errors import InvalidRequest
from sluice.wire.request import REFUSED, Request, upstream_body
from sluice.wire.responses_request import (
    ChatEquivalent,
    input_items,
    previous_response,
    read_responses_request,
    references,
    stores,
    to_chat,
)
from tests.wire.pieces import deep, json_values
from tests.wire.sdk import sdk

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object"},
    "strict": True,
}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(body: Any = None, **more: Any) -> Request:
    if not isinstance(body, bytes):
        body = json.dumps({"model": "m", "input": "hi", **(body or {}), **more}).encode()
    return read_responses_request(body)


def chat(*, history: Any = (), referenced: Any = None, **more: Any) -> ChatEquivalent:
    return to_chat(read(**more), history, referenced or {})


def sent(*, history: Any = (), referenced: Any = None, **more: Any) -> dict[str, Any]:
    """The body that a chat upstream gets."""
    request = chat(history=history, referenced=referenced, **more).request
    body = upstream_body(request, "up", "max_completion_tokens", {"include_usage": True})
    found: dict[str, Any] = json.loads(body)
    return found


def refused(body: Any = None, **more: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        to_chat(read(body, **more))
    return caught.value


def trouble(body: bytes) -> InvalidRequest | None:
    """Why a body can't be served, if it can't."""
    try:
        request = read_responses_request(body)
        to_chat(request)
        input_items(request)
    except InvalidRequest as error:
        return error
    return None


class TestReading:
    def test_what_the_gateway_needs_is_read(self) -> None:
        request = read(
            instructions="be brief", stream=True, max_output_tokens=50, **{"x-tier": "batch"}
        )
        assert (request.model, request.stream, request.max_tokens) == ("m", True, 50)
        assert request.prompt_characters == len('"hi"') + len("be brief")
        assert request.tier == "batch"
        assert "x-tier" not in request.members

    def test_chat_s_names_of_the_limit_are_not_this_format_s(self) -> None:
        assert read(max_tokens=5).max_tokens is None

    @pytest.mark.parametrize("name", sorted(REFUSED))
    def test_case_86_what_would_steer_our_calls_is_refused(self, name: str) -> None:
        assert refused(**{name: "x"}).param == name

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"model": None}, "model"),
            ({"input": None}, "input"),
            ({"input": ""}, "input"),
            ({"input": []}, "input"),
            ({"input": 7}, "input"),
            ({"input": [7]}, "input[0]"),
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"max_output_tokens": "x"}, "max_output_tokens"),
            ({"instructions": 7}, "instructions"),
            ({"store": 7}, "store"),
            ({"stream": "yes"}, "stream"),
            ({"tools": {}}, "tools"),
            ({"text": []}, "text"),
            ({"reasoning": "high"}, "reasoning"),
            ({"include": "x"}, "include"),
            ({"text": {"format": {"type": "xml"}}}, "text.format"),
            ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
            ({"text": {"format": "json"}}, "text.format"),
        ],
    )
    def test_a_bad_member_is_refused_by_name(self, more: dict[str, Any], param: str) -> None:
        assert refused(**more).param == param

    @pytest.mark.parametrize("name", ["input", "tools", "text", "tool_choice"])
    def test_what_nests_too_deeply_is_refused_by_name(self, name: str) -> None:
        members = {"model": b'"m"', "input": b'"hi"', name: deep()}
        body = b"{" + b",".join(b'"%s":%s' % (k.encode(), v) for k, v in members.items()) + b"}"
        with pytest.raises(InvalidRequest):
            to_chat(read_responses_request(body))

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"input":"\xff"}'])
    def test_what_is_no_object_is_refused(self, body: bytes) -> None:
        assert refused(body).code == "invalid_json"

    def test_half_a_surrogate_pair_is_mended(self) -> None:
        request = read(b'{"model":"m","input":[{"role":"user","content":"a\\ud83d"}]}')
        assert b"a\xef\xbf\xbd" in bytes(to_chat(request).request.members["messages"])

    @pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
    def test_a_prompt_from_elsewhere_needs_no_input(self, name: str) -> None:
        assert read(input=None, **{name: "resp_1"}).model == "m"

    def test_the_chain_and_the_store(self) -> None:
        assert previous_response(read(previous_response_id="resp_1")) == "resp_1"
        assert previous_response(read()) is None
        assert [stores(read(store=value)) for value in (None, True, False)] == [True, True, False]

    @given(value=json_values, name=st.sampled_from(["input", "tools", "tool_choice", "text"]))
    def test_no_value_makes_it_fail_otherwise(self, value: Any, name: str) -> None:
        body = json.dumps({"model": "m", "input": "hi", name: value}).encode()
        error = trouble(body)
        assert error is None or error.param is not None

    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "role",
                        "content",
                        "call_id",
                        "output",
                        "name",
                        "arguments",
                        "id",
                        "tools",
                    ]
                ),
                st.sampled_from(
                    [
                        "message",
                        "function_call",
                        "reasoning",
                        "user",
                        "assistant",
                        "additional_tools",
                        "1",
                    ]
                )
                | json_values,
            ),
            max_size=4,
        )
    )
    def test_no_items_make_it_fail_otherwise(self, items: list[dict[str, Any]]) -> None:
        body = json.dumps({"model": "m", "input": items}).encode()
        error = trouble(body)
        assert error is None or error.param is not None


class TestChat:
    def test_r01_text_is_a_user_s_message(self) -> None:
        assert sent() == {"model": "up", "messages": [{"role": "user", "content": "hi"}]}

    def test_everything_that_chat_knows_goes_under_chat_s_name(self) -> None:
        found = sent(
            instructions="be brief",
            max_output_tokens=9,
            temperature=0.5,
            top_p=0.25,
            top_logprobs=3,
            parallel_tool_calls=False,
            tools=[WEATHER],
            tool_choice={"type": "function", "name": "weather"},
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "low"},
            user="u",
            safety_identifier="s",
            service_tier="flex",
            prompt_cache_key="k",
        )
        assert found.pop("tools")[0]["function"]["name"] == "weather"
        assert found.pop("messages")[0] == {"role": "system", "content": "be brief"}
        assert found == {
            "model": "up",
            "max_completion_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.25,
            "logprobs": True,
            "top_logprobs": 3,
            "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "reasoning_effort": "low",
            "verbosity": "low",
            "user": "u",
            "safety_identifier": "s",
            "service_tier": "flex",
            "prompt_cache_key": "k",
        }

    def test_what_chat_has_not_stays_here(self) -> None:
        found = sent(
            store=True,
            metadata={"a": "b"},
            truncation="auto",
            max_tool_calls=3,
            include=[],
            tools=[],
            client_metadata={"x": 1},
            context_management=[],
            background=False,
            conversation=None,
            parallel_tool_calls=True,
            stream_options=None,
        )
        assert sorted(found) == ["messages", "model"]

    def test_nulls_are_nothing(self) -> None:
        nothing = ["temperature", "tools", "tool_choice", "text", "reasoning", "include", "user"]
        assert sorted(sent(**dict.fromkeys(nothing))) == ["messages", "model"]

    def test_r02_a_stream_asks_for_usage(self) -> None:
        found = chat(stream=True, stream_options={"include_obfuscation": False}).request
        assert found.stream_options is not None
        assert found.stream_options.include_usage
        assert sent(stream=True)["stream_options"] == {"include_usage": True}

    def test_r04_the_format_is_nested(self) -> None:
        form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
        assert sent(text={"format": form})["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        }
        assert sent(text={"format": {"type": "json_object"}})["response_format"] == {
            "type": "json_object"
        }
        assert "response_format" not in sent(text={"format": {"type": "text"}})

    def test_logprobs_may_be_asked_for_by_include(self) -> None:
        found = sent(include=["message.output_text.logprobs"])
        assert (found["logprobs"], found["top_logprobs"]) == (True, 0)

    def test_r09_offered_hosted_tools_are_dropped_and_named(self) -> None:
        found = chat(tools=[{"type": "web_search"}, WEATHER], tool_choice="auto")
        assert found.dropped_tools == ("web_search",)
        assert len(found.echo.members["tools"]) == 2

    def test_r09_hosted_tools_alone_leave_no_choice_either(self) -> None:
        assert "tool_choice" not in sent(tools=[{"type": "web_search"}], tool_choice="auto")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("background", True),
            ("conversation", "conv_1"),
            ("prompt", {"id": "p"}),
            ("moderation", {"model": "x"}),
            ("tool_choice", {"type": "web_search"}),
        ],
    )
    def test_r09_what_chat_can_not_do_is_refused_by_name(self, name: str, value: Any) -> None:
        error = refused(tools=[{"type": "web_search"}], **{name: value})
        assert (error.param, error.code) == (name, "unsupported_parameter")

    def test_tools_that_came_up_on_the_way_are_offered(self) -> None:
        late = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
        found = sent(input=[{"role": "user", "content": "hi"}, late, late], tools=[WEATHER])
        assert len(found["tools"]) == 1
        assert len(found["messages"]) == 1

    def test_the_prompt_is_measured_with_its_history(self) -> None:
        history = [{"type": "message", "role": "user", "content": "before"}]
        short, long = chat(), chat(history=history)
        assert long.request.prompt_characters > short.request.prompt_characters
        assert long.echo.prompt_characters == long.request.prompt_characters


class TestHistory:
    HISTORY = (
        {"type": "message", "role": "user", "content": "what's up", "id": "msg_1_i0"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1_0"},
    )
    OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "sky"}  # noqa: RUF012

    def test_r05_the_chain_comes_first_and_old_instructions_do_not(self) -> None:
        found = sent(
            history=self.HISTORY,
            input=[self.OUTPUT],
            instructions="now",
            previous_response_id="resp_1",
        )
        assert [one["role"] for one in found["messages"]] == ["system", "user", "assistant", "tool"]

    def test_a_reference_stands_for_its_item(self) -> None:
        call = dict(self.HISTORY[1])
        given = [{"type": "item_reference", "id": "fc_1_0"}, self.OUTPUT]
        assert references(read(input=given)) == ("fc_1_0",)
        found = sent(input=given, referenced={"fc_1_0": call})
        assert [one["role"] for one in found["messages"]] == ["assistant", "tool"]

    def test_a_reference_to_the_history_adds_nothing(self) -> None:
        found = sent(history=self.HISTORY, input=[{"id": "fc_1_0"}, self.OUTPUT])
        assert [one["role"] for one in found["messages"]] == ["user", "assistant", "tool"]

    def test_a_second_reference_to_an_item_is_refused(self) -> None:
        """A short input could stand for a prompt of any length."""
        given = [{"type": "item_reference", "id": "fc_1_0"}, self.OUTPUT, {"id": "fc_1_0"}]
        error = refused(input=given)
        assert (error.param, error.code) == ("input", "duplicate_item")
        assert "input[2]" in str(error)

    def test_r06_a_reference_to_nothing_known_is_refused(self) -> None:
        error = refused(input=[{"type": "item_reference", "id": "msg_9_0"}])
        assert (error.param, error.code) == ("input", "item_not_found")
        assert "msg_9_0" in str(error)


class TestItems:
    def test_text_becomes_a_message(self) -> None:
        assert input_items(read(), "resp_1") == [
            {
                "type": "message",
                "id": "msg_1_i0",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "hi"}],
            }
        ]

    def test_items_get_what_is_missing_and_keep_the_rest(self) -> None:
        output = {"type": "function_call_output", "call_id": "c", "output": "x"}
        found = input_items(
            read(input=[{"role": "assistant", "content": "a"}, output, {**output, "id": "mine"}]),
            "resp_1",
        )
        assert [item["id"] for item in found] == ["msg_1_i0", "fco_1_i1", "mine"]
        assert found[0]["content"][0]["type"] == "output_text"
        assert found[1] == {**output, "id": "fco_1_i1", "status": "completed"}

    def test_references_are_replaced_by_their_items(self) -> None:
        item = {"type": "message", "role": "user", "content": "x", "id": "m"}
        given = read(input=[{"type": "item_reference", "id": "m"}])
        assert input_items(given, "resp_1", {"m": item}) == [item]
        with pytest.raises(InvalidRequest):
            input_items(given, "resp_1")

    def test_ids_are_new_without_a_response(self) -> None:
        assert input_items(read())[0]["id"] != input_items(read())[0]["id"]

    def test_stored_items_go_to_chat_as_the_originals_did(self) -> None:
        given = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ]
        stored = input_items(read(input=given), "resp_1")
        again = {"role": "user", "content": "more"}
        assert (
            sent(history=stored, input=[again])["messages"]
            == sent(input=[*given, again])["messages"]
        )


def test_what_the_sdk_sends_is_read() -> None:
    with sdk({"id": "resp_1", "object": "response", "output": []}) as (client, canned):
        client.responses.create(
            model="m",
            instructions="be brief",
            input=[
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            ],
            tools=[WEATHER],
            text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            max_output_tokens=20,
        )
    found = to_chat(read_responses_request(canned.asked[0])).request
    assert found.max_tokens == 20
    assert sorted(found.members) == [
        "max_completion_tokens",
        "messages",
        "model",
        "response_format",
        "tools",
    ]
