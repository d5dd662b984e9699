"""Tools for Anthropic, their calls and the choice among them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.anthropic_answer import upstream_id, upstream_name
from sluice.wire.anthropic_profile import profile_of
from sluice.wire.anthropic_request import names_of, to_messages
from sluice.wire.errors import InvalidRequest
from tests.wire.anthropic_requests import (
    JPEG,
    NEW,
    USER,
    call,
    calls,
    data_uri,
    refused,
    request_of,
    result,
    tool,
    translated,
    turns,
)


class TestToolTurns:
    def test_case_40_all_results_in_one_turn_before_the_text(self) -> None:
        out = turns([USER, calls(call("a"), call("b")), result("a"), result("b"), USER])
        assert out[2] == {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a",
                 "content": [{"type": "text", "text": "1"}]},
                {"type": "tool_result", "tool_use_id": "b",
                 "content": [{"type": "text", "text": "1"}]},
                {"type": "text", "text": "hi"},
            ],
        }  # fmt: skip

    @pytest.mark.parametrize("after", [[], [USER], [USER, {"role": "assistant", "content": "x"}]])
    def test_case_41_a_missing_result_is_named(self, after: list[Any]) -> None:
        messages = [USER, calls(call("a"), call("b")), result("b"), *after]
        with pytest.raises(InvalidRequest, match="`a`") as caught:
            to_messages(request_of(messages=messages), NEW)
        assert caught.value.param == "messages"

    def test_a_result_without_its_call(self) -> None:
        assert refused(messages=[USER, result()])[0] == "messages[1].tool_call_id"
        twice = [USER, calls(call()), result(), result()]
        assert refused(messages=twice)[0] == "messages[3].tool_call_id"

    @pytest.mark.parametrize(
        ("arguments", "value"), [("", {}), ("{}", {}), ('{"a": 1e400}', None), (' {"a":[1]}', {})]
    )
    def test_arguments_become_an_object(self, arguments: str, value: Any) -> None:
        request = request_of(messages=[USER, calls(call(arguments=arguments)), result()])
        sent = to_messages(request, NEW)
        if arguments.strip("{} "):
            assert arguments.strip().replace(" ", "").encode() in sent.replace(b" ", b"")
        else:
            assert json.loads(sent)["messages"][1]["content"][0]["input"] == value

    @pytest.mark.parametrize("arguments", ["{", "[]", "1", '"x"', "nul", "{} {}"])
    def test_arguments_that_are_no_object(self, arguments: str) -> None:
        messages = [USER, calls(call(arguments=arguments)), result()]
        param, _ = refused(messages=messages)
        assert param == "messages[1].tool_calls[0].function.arguments"

    def test_c34_foreign_ids_are_rewritten_in_pairs(self) -> None:
        messages = [USER, calls(call("functions.f:0")), result("functions.f:0")]
        _, turn, answer = turns(messages)
        ident = turn["content"][0]["id"]
        assert ident == answer["content"][0]["tool_use_id"] == upstream_id("functions.f:0")

    def test_an_id_used_again_becomes_another(self) -> None:
        once = [calls(call("c0")), result("c0", "x")]
        _, first, _, second, answer = turns([USER, *once, *once])
        assert first["content"][0]["id"] == "c0"
        assert second["content"][0]["id"] == answer["content"][0]["tool_use_id"] == "c0_2"

    def test_two_calls_with_one_id(self) -> None:
        assert refused(messages=[USER, calls(call(), call()), result()])[0] == (
            "messages[1].tool_calls[1]"
        )

    def test_an_image_as_a_result(self) -> None:
        image = {"type": "image_url", "image_url": {"url": data_uri(JPEG, "image/png")}}
        out = turns([USER, calls(call()), result(content=[image])])
        assert out[-1]["content"][0]["content"][0]["source"]["media_type"] == "image/jpeg"

    def test_called_tools_are_declared_where_none_are_offered(self) -> None:
        body = translated(messages=[USER, calls(call(name="a.b")), result()])
        assert [tool["name"] for tool in body["tools"]] == [upstream_name("a.b")]
        assert body["tool_choice"] == {"type": "none"}


class TestTools:
    def test_a_tool(self) -> None:
        parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
        tools = [tool(description="d", parameters=parameters), tool("g")]
        assert translated(tools=tools)["tools"] == [
            {"name": "f", "description": "d", "input_schema": parameters},
            {"name": "g", "input_schema": {"type": "object", "properties": {}}},
        ]

    def test_strict_is_kept_where_the_model_knows_it(self) -> None:
        tools = [tool(strict=True, parameters={"type": "object", "properties": {}})]
        sent = translated(tools=tools)["tools"][0]
        assert sent["strict"] is True
        assert sent["input_schema"]["additionalProperties"] is False
        assert "strict" not in translated(profile_of("claude-3-opus"), tools=tools)["tools"][0]

    def test_c31_no_tools(self) -> None:
        assert translated(tools=[]) == translated()

    def test_custom_tools(self) -> None:
        custom = {"type": "custom", "custom": {"name": "x"}}
        assert refused(tools=[custom]) == ("tools[0]", "unsupported_parameter")

    @given(st.text(min_size=1, max_size=80))
    def test_case_49_names_map_there_and_back(self, name: str) -> None:
        sent = upstream_name(name)
        assert len(sent) <= 64
        assert sent.replace("_", "a").replace("-", "a").isalnum()
        assert names_of(request_of(tools=[tool(name)])).client_name(sent) == name

    def test_case_49_a_dotted_name_stays_readable(self) -> None:
        assert upstream_name("a.b").startswith("a_b_")
        assert upstream_name("a-b_1") == "a-b_1"

    @pytest.mark.parametrize(
        ("choice", "theirs"),
        [
            ("none", {"type": "none"}),
            ("auto", {"type": "auto"}),
            ("required", {"type": "any"}),
            ({"type": "function", "function": {"name": "f"}}, {"type": "tool", "name": "f"}),
        ],
    )
    def test_the_choice(self, choice: Any, theirs: Any) -> None:
        assert translated(tools=[tool()], tool_choice=choice)["tool_choice"] == theirs

    def test_c10_one_call_at_a_time(self) -> None:
        one = {"tools": [tool()], "parallel_tool_calls": False}
        assert translated(**one)["tool_choice"] == {
            "type": "auto", "disable_parallel_tool_use": True
        }  # fmt: skip
        assert translated(**one, tool_choice="none")["tool_choice"] == {"type": "none"}
        assert "tool_choice" not in translated(parallel_tool_calls=False)

    def test_allowed_tools(self) -> None:
        allowed = {"mode": "required", "tools": [tool("g")]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        body = translated(tools=[tool(), tool("g")], tool_choice=choice)
        assert [tool["name"] for tool in body["tools"]] == ["g"]
        assert body["tool_choice"] == {"type": "any"}

    @pytest.mark.parametrize(
        "members",
        [
            {"tool_choice": "required"},  # C30
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": "never", "tools": [tool()]},
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool()]},
            {"tool_choice": {"type": "custom", "custom": {"name": "f"}}, "tools": [tool()]},
        ],
    )
    def test_a_choice_that_cant_be_made(self, members: dict[str, Any]) -> None:
        assert refused(**members)[0] == "tool_choice"

    def test_c30_a_harmless_choice_without_tools_is_dropped(self) -> None:
        assert "tool_choice" not in translated(tool_choice="auto")
