"""Messages requests: read and checked, and their parameters translated to chat's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_request import check_version, read_messages_request, to_chat
from tests.wire.messages import TOOL, body, chat, refused
from tests.wire.pieces import deep, json_values

WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}


class TestReading:
    def test_n10_members_stay_as_they_came(self) -> None:
        data = b'{"model" : "m","max_tokens":5,"system":[ {"type":"text","text":"\\u00e9"} ],'
        data += (
            b'"messages":[{"role":"user","content":"x"}],"unknown":{"a": 1.50},"x-tier":"batch"}'
        )
        request = read_messages_request(data)
        assert bytes(request.members["system"]) == b'[ {"type":"text","text":"\\u00e9"} ]'
        assert bytes(request.members["unknown"]) == b'{"a": 1.50}'
        assert "x-tier" not in request.members
        assert (request.model, request.max_tokens, request.tier) == ("m", 5, "batch")

    def test_the_prompt_is_messages_and_system(self) -> None:
        without = read_messages_request(body()).prompt_characters
        assert read_messages_request(body(system="abc")).prompt_characters == without + 5

    @pytest.mark.parametrize(
        ("members", "param"),
        [
            ({"messages": []}, "messages"),
            ({"messages": None}, "messages"),
            ({"messages": "hi"}, "messages"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user"}]}, "messages[0]"),
            ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
            ({"max_tokens": None}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": "5"}, "max_tokens"),
            ({"model": ""}, "model"),
            ({"model": None}, "model"),
            ({"stream": 1}, "stream"),
            ({"api_base": "http://169.254.169.254/"}, "api_base"),
            ({"extra_headers": {}}, "extra_headers"),
        ],
    )
    def test_case_86_and_bad_members_are_named(self, members: Any, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            read_messages_request(body(**members))
        assert caught.value.param == param

    @pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"', b'{"a":"\xff"}', deep()])
    def test_what_is_no_object_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidRequest):
            read_messages_request(data)

    def test_n11_sampling_is_refused_under_the_version_without_it(self) -> None:
        for name, value in (("temperature", 1), ("top_p", 1), ("top_k", 1)):
            request = read_messages_request(body(**{name: value}))
            for version in (None, "2023-06-01", "bedrock-2023-05-31"):
                check_version(request, version)
            with pytest.raises(InvalidRequest) as caught:
                check_version(request, "2026-10-21")
            assert caught.value.param == name
        check_version(read_messages_request(body()), "2026-10-21")


class TestTools:
    def test_tools_are_functions_and_what_only_tunes_is_dropped(self) -> None:
        tool = {
            **TOOL,
            "type": "custom",
            "strict": True,
            "defer_loading": True,
            "cache_control": {"type": "ephemeral"},
            "eager_input_streaming": True,
        }
        got = chat(tools=[tool, {"name": "bare"}])
        function = {
            "name": "f",
            "description": "d",
            "parameters": TOOL["input_schema"],
            "strict": True,
        }
        empty = {"name": "bare", "parameters": {"type": "object", "properties": {}}}
        assert got["tools"] == [
            {"type": "function", "function": function},
            {"type": "function", "function": empty},
        ]

    @pytest.mark.parametrize(
        ("choice", "want"),
        [
            ({"type": "auto"}, "auto"),
            ({"type": "any"}, "required"),
            ({"type": "none"}, "none"),
            ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ],
    )
    def test_c09_choices(self, choice: Any, want: Any) -> None:
        got = chat(tools=[TOOL], tool_choice=choice)
        assert got["tool_choice"] == want
        assert "parallel_tool_calls" not in got

    def test_c10_parallel_calls_are_switched_off(self) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert chat(tools=[TOOL], tool_choice=choice)["parallel_tool_calls"] is False

    @pytest.mark.parametrize("tools", [[], None])
    def test_c31_no_tools_are_no_member(self, tools: Any) -> None:
        got = chat(tools=tools, tool_choice={"type": "auto"})
        assert "tools" not in got
        assert "tool_choice" not in got

    @pytest.mark.parametrize(
        ("members", "param"),
        [
            ({"tools": [TOOL, WEB_SEARCH]}, "tools[1]"),
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
            ({"tools": [{"description": "d"}]}, "tools[0].name"),
            ({"tools": [{**TOOL, "name": 1}]}, "tools[0].name"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
            ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ],
    )
    def test_what_can_not_be_offered_is_named(self, members: Any, param: str) -> None:
        assert refused(**members).param == param

    @pytest.mark.parametrize(
        "tool",
        [
            {**WEB_SEARCH, "defer_loading": True},
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search"},
        ],
    )
    def test_server_tools_that_are_not_in_use_are_dropped(self, tool: Any) -> None:
        assert len(chat(tools=[TOOL, tool])["tools"]) == 1


class TestParameters:
    def test_a_plain_request(self) -> None:
        assert chat() == {
            "model": "up",
            "messages": [{"role": "user", "content": "hello"}],
            "max_completion_tokens": 200,
        }

    def test_c03_streams_ask_for_usage(self) -> None:
        request = to_chat(read_messages_request(body(stream=True)), vllm=False)
        assert request.stream
        assert request.stream_options is not None
        assert request.stream_options.include_usage
        assert chat(stream=True)["stream_options"] == {"include_usage": True}

    def test_a_cache_warm_up_is_the_shortest_answer(self) -> None:
        assert read_messages_request(body(max_tokens=0)).max_tokens == 0
        assert chat(max_tokens=0)["max_completion_tokens"] == 1

    def test_sampling(self) -> None:
        given: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop_sequences": ["a", "b"],
        }
        got = chat(**given)
        assert (got["temperature"], got["top_p"], got["stop"]) == (0.5, 0.9, ["a", "b"])
        assert "top_k" not in got
        assert chat(vllm=True, **given)["top_k"] == 40
        assert "stop" not in chat(stop_sequences=[])

    @pytest.mark.parametrize("stops", [["a"] * 5, [""], "a"])
    def test_stop_sequences_that_can_not_be(self, stops: Any) -> None:
        assert refused(stop_sequences=stops).param == "stop_sequences"

    @pytest.mark.parametrize(
        ("members", "openai", "vllm"),
        [
            ({"thinking": {"type": "disabled"}}, {}, {"reasoning_effort": "none"}),
            (
                {"thinking": {"type": "enabled", "budget_tokens": 2048}},
                {"reasoning_effort": "low"},
                {"thinking_token_budget": 2048},
            ),
            (
                {"thinking": {"type": "enabled", "budget_tokens": 10_000}},
                {"reasoning_effort": "medium"},
                {"thinking_token_budget": 10_000},
            ),
            (
                {
                    "thinking": {"type": "enabled", "budget_tokens": 31_999},
                    "output_config": {"effort": "xhigh"},
                },
                {"reasoning_effort": "xhigh"},
                {"thinking_token_budget": 31_999, "reasoning_effort": "xhigh"},
            ),
            ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}, {}),
            (
                {"output_config": {"effort": "high"}},
                {"reasoning_effort": "high"},
                {"reasoning_effort": "high"},
            ),
        ],
    )
    def test_c25_thinking(self, members: Any, openai: Any, vllm: Any) -> None:
        plain = chat()
        assert chat(**members) == {**plain, **openai}
        assert chat(vllm=True, **members) == {**plain, **vllm}
        assert chat(vllm=True, reasoning=False, **members) == plain

    def test_thinking_needs_its_budget(self) -> None:
        assert refused(thinking={"type": "enabled"}).param == "thinking.budget_tokens"

    @pytest.mark.parametrize("name", ["output_config", "output_format"])
    def test_c12_a_schema_for_the_answer(self, name: str) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "schema": schema}
        given: dict[str, Any] = {name: {"format": form} if name == "output_config" else form}
        got = chat(**given)
        assert got["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        }

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object"},
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
            {"anyOf": [{"type": "object", "properties": {}}]},
            {"allOf": []},
        ],
    )
    def test_schemas_that_openai_would_not_keep_to_strictly(self, schema: Any) -> None:
        config: dict[str, Any] = {"format": {"type": "json_schema", "schema": schema}}
        got = chat(output_config=config)["response_format"]["json_schema"]
        assert (got["schema"], got["strict"]) == (schema, False)

    @pytest.mark.parametrize("form", [{"type": "json_schema"}, {"type": "xml", "schema": {}}])
    def test_other_formats_are_refused(self, form: Any) -> None:
        assert refused(output_config={"format": form}).param == "output_config.format"

    def test_the_account_is_told_to_openai_alone(self) -> None:
        given: dict[str, Any] = {"metadata": {"user_id": "u1"}, "service_tier": "standard_only"}
        got = chat(**given)
        assert (got["safety_identifier"], got["service_tier"]) == ("u1", "default")
        assert chat(vllm=True, **given) == chat()
        long = chat(metadata={"user_id": "u" * 200})["safety_identifier"]
        assert len(long) <= 128
        assert chat(metadata={"user_id": "u" * 200})["safety_identifier"] == long

    def test_what_only_tunes_is_dropped(self) -> None:
        given: dict[str, Any] = {
            "cache_control": {"type": "ephemeral"},
            "context_management": {"edits": []},
            "container": "c",
            "speed": "fast",
            "inference_geo": "eu",
            "mcp_servers": [],
            "a_beta_of_tomorrow": True,
        }
        assert chat(**given) == chat()

    def test_threads_are_refused_by_their_code(self) -> None:
        error = refused(thread={"type": "create"})
        assert (error.param, error.code) == ("thread", "thread_unsupported_request")
        assert chat(thread=None) == chat()

    def test_mcp_servers_are_refused(self) -> None:
        assert refused(mcp_servers=[{"type": "url"}]).param == "mcp_servers"

    @settings(deadline=None, max_examples=200)
    @given(
        name=st.sampled_from(
            [
                "system",
                "messages",
                "tools",
                "tool_choice",
                "thinking",
                "output_config",
                "metadata",
                "stop_sequences",
                "service_tier",
                "output_format",
                "thread",
            ]
        ),
        value=json_values,
    )
    def test_any_value_is_translated_or_named(self, name: str, value: Any) -> None:
        for vllm in (True, False):
            try:
                chat(vllm, **{name: value})
            except InvalidRequest as error:
                assert (error.param or "").startswith(name)  # noqa: PT017 - else is fine too
