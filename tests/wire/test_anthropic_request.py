"""Chat requests as requests of Anthropic's Messages: what is translated, refused and dropped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import message_create_params
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sluice.wire.anthropic_answer import upstream_id, upstream_name
from sluice.wire.anthropic_request import AnthropicProfile, names_of, profile_of, to_messages
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request, check_chat, read_request
from tests.wire.pieces import deep, json_values

NEW = profile_of("claude-opus-5")
OLD = profile_of("claude-sonnet-4-5")
USER = {"role": "user", "content": "hi"}
USER_TURN = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
PNG = b"\x89PNG\r\n\x1a\n0000"
JPEG = b"\xff\xd8\xff\xe0000"
PDF = b"%PDF-1.7 000"


def request_of(**members: Any) -> Request:
    body = {"model": "alias", "messages": [USER], "max_tokens": 100, **members}
    request = read_request(json.dumps(body).encode(), "messages")
    check_chat(request)
    return request


def translated(profile: AnthropicProfile = NEW, /, **members: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(to_messages(request_of(**members), profile))
    validate(body)
    return body


def turns(messages: list[Any], profile: AnthropicProfile = NEW, **members: Any) -> list[Any]:
    out: list[Any] = translated(profile, messages=messages, **members)["messages"]
    return out


def refused(profile: AnthropicProfile = NEW, /, **members: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        to_messages(request_of(**members), profile)
    return caught.value.param, caught.value.code


_params: TypeAdapter[Any] = TypeAdapter(message_create_params.MessageCreateParamsNonStreaming)


def validate(body: dict[str, Any]) -> None:
    """By the official SDK's types, but for what only older API versions have."""
    gone = {"stream", "temperature", "top_p", "top_k"}
    _exhaust(_params.validate_python({k: v for k, v in body.items() if k not in gone}))


def _exhaust(value: Any) -> None:
    """Iterables are validated when they are read."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        for inner in value:
            _exhaust(inner)


def data_uri(content: bytes, label: str) -> str:
    return f"data:{label};base64,{base64.b64encode(content).decode()}"


def call(ident: str = "a", name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*several: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(several), **more}


def result(ident: str = "a", content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": content}


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


class TestProfiles:
    @pytest.mark.parametrize(
        ("model", "thinking", "sampling", "top"),
        [
            ("claude-fable-5", "adaptive", "none", "max"),
            ("claude-opus-4-8", "adaptive", "none", "max"),
            ("claude-sonnet-5", "adaptive", "default_only", "max"),
            ("claude-opus-4-6", "adaptive", "all", "max"),
            ("claude-opus-4-5-20251101", "budget", "all", "high"),
            ("claude-haiku-4-5@20251001", "budget", "all", None),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "budget", "all", None),
            ("claude-opus-4-20250514", "none", "all", None),
            ("claude-3-5-haiku-latest", "none", "all", None),
            ("claude-saga-7", "adaptive", "none", "max"),
            ("something-else", "adaptive", "none", "max"),
        ],
    )
    def test_a_name_gives_its_profile(
        self, model: str, thinking: str, sampling: str, top: str | None
    ) -> None:
        profile = profile_of(model)
        assert (profile.model, profile.thinking, profile.sampling) == (model, thinking, sampling)
        assert profile.effort[-1:] == ((top,) if top else ())


class TestBody:
    def test_the_smallest_request(self) -> None:
        assert translated() == {
            "model": "claude-opus-5", "max_tokens": 100, "messages": [USER_TURN]
        }  # fmt: skip

    def test_case_54_either_name_of_the_token_limit(self) -> None:
        body = translated(max_tokens=None, max_completion_tokens=7)
        assert body["max_tokens"] == 7
        assert "max_completion_tokens" not in body

    def test_case_53_no_limit_takes_the_models_own(self) -> None:
        bound = replace(NEW, max_output=64)
        assert translated(bound, max_tokens=None)["max_tokens"] == 64
        assert translated(bound)["max_tokens"] == 64
        assert refused(max_tokens=None) == ("max_tokens", "missing_required_parameter")

    def test_streaming(self) -> None:
        body = translated(stream=True, stream_options={"include_usage": True})
        assert body["stream"] is True
        assert "stream_options" not in body

    @pytest.mark.parametrize("name", ["safety_identifier", "user"])
    def test_the_end_user(self, name: str) -> None:
        assert translated(**{name: "u1"})["metadata"] == {"user_id": "u1"}
        assert translated(metadata={"user_id": "u2", "x": "y"})["metadata"] == {"user_id": "u2"}
        assert "metadata" not in translated(metadata={"x": "y"})

    @pytest.mark.parametrize(
        ("tier", "theirs"),
        [("auto", "auto"), ("priority", "auto"), ("default", "standard_only"),
         ("flex", "standard_only")],
    )  # fmt: skip
    def test_the_service_tier(self, tier: str, theirs: str) -> None:
        assert translated(service_tier=tier)["service_tier"] == theirs

    def test_case_47_stops(self) -> None:
        assert translated(stop="END")["stop_sequences"] == ["END"]
        assert translated(stop=["\n", "", "a"])["stop_sequences"] == ["a"]
        assert "stop_sequences" not in translated(stop=["\n"])


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("logprobs", True),  # C17
            ("top_logprobs", 3),
            ("n", 2),  # C18, case 55
            ("frequency_penalty", 0.5),
            ("presence_penalty", -1),
            ("logit_bias", {"1": 5}),
            ("audio", {"voice": "x"}),
            ("modalities", ["text", "audio"]),
            ("web_search_options", {}),
            ("moderation", {}),
            ("structured_outputs", {"regex": "a"}),  # C24
            ("chat_template_kwargs", {}),
            ("min_p", 0.1),
            ("surprise", 1),
        ],
    )
    def test_what_has_no_counterpart_is_named(self, name: str, value: Any) -> None:
        assert refused(**{name: value}) == (name, "unsupported_parameter")
        assert name not in translated(**{name: None})

    @pytest.mark.parametrize(
        "members",
        [
            {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
            {"logprobs": False, "seed": 7, "store": True, "verbosity": "low"},
            {"modalities": ["text"], "prompt_cache_key": "k", "prediction": {"type": "content"}},
        ],
    )
    def test_what_asks_for_nothing_is_dropped(self, members: dict[str, Any]) -> None:
        assert translated(**members) == translated()

    @pytest.mark.parametrize(
        "part",
        [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, {"type": "video"}],
    )
    def test_case_55_audio_is_not_lost_silently(self, part: Any) -> None:
        messages = [{"role": "user", "content": [part]}]
        assert refused(messages=messages) == ("messages[0].content[0]", "unsupported_parameter")

    @pytest.mark.parametrize(
        "member",
        [
            b'"n":1e999',
            b'"temperature":1e999',
            b'"tools":[{"type":"function","function":{"name":"f","strict":true,'
            b'"parameters":{"minimum":1e999}}}]',
        ],
    )
    def test_numbers_out_of_range(self, member: bytes) -> None:
        body = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],%s}'
        request = read_request(body % member, "messages")
        with pytest.raises(InvalidRequest):
            to_messages(request, OLD)

    def test_depth_is_bounded(self) -> None:
        parameters = b'{"type":"object","x":' + deep(20_000) + b"}"
        tools = b'[{"type":"function","function":{"name":"f","strict":true,"parameters":%s}}]'
        members = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":'
        try:
            request = read_request(members + tools % parameters + b"}", "messages")
        except InvalidRequest:
            return
        with pytest.raises(InvalidRequest):
            to_messages(request, NEW)


class TestSystem:
    def test_leading_ones_become_blocks(self) -> None:
        messages = [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}]},  # C21
            USER,
        ]
        body = translated(messages=messages)
        assert body["system"] == [{"type": "text", "text": "s"}, {"type": "text", "text": "d"}]
        assert body["messages"] == [USER_TURN]

    def test_case_43_a_later_one_keeps_its_place(self) -> None:
        later = {"role": "system", "content": "s"}
        hi = {"type": "text", "text": "hi"}
        folded = {"type": "text", "text": "<system>\ns\n</system>"}
        answer = {"role": "assistant", "content": "ok"}
        assert turns([USER, answer, later, USER])[2]["content"] == [folded, hi]
        assert turns([USER, later], OLD) == [{"role": "user", "content": [hi, folded]}]
        assert [turn["role"] for turn in turns([USER, later])] == ["user", "system"]
        kept = turns([USER, later, answer, USER])
        assert [turn["role"] for turn in kept] == ["user", "system", "assistant", "user"]
        assert turns([USER, later, USER])[0]["content"] == [hi, folded, hi]

    def test_one_between_calls_and_results_follows_the_results(self) -> None:
        messages = [USER, calls(call()), {"role": "system", "content": "s"}, result()]
        kinds = [block["type"] for block in turns(messages)[-1]["content"]]
        assert kinds == ["tool_result", "text"]

    def test_a_system_message_alone_gets_a_turn(self) -> None:
        body = translated(messages=[{"role": "system", "content": "s"}])
        assert body["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "(start)"}]}
        ]


class TestTurns:
    def test_one_roles_messages_merge(self) -> None:
        out = turns([USER, {**USER, "name": "x"}, {"role": "assistant", "content": "a"},
                     {"role": "assistant", "content": "b"}, USER])  # fmt: skip
        assert [len(turn["content"]) for turn in out] == [2, 2, 1]

    def test_blank_texts_disappear(self) -> None:
        parts = [{"type": "text", "text": ""}, {"type": "text", "text": "x"}]
        assert turns([{"role": "user", "content": parts}])[0]["content"] == [parts[1]]
        assert turns([USER, {"role": "user", "content": "\n"}]) == [USER_TURN]

    def test_a_conversation_that_the_assistant_begins(self) -> None:
        out = turns([{"role": "assistant", "content": "hello"}, USER])
        assert [turn["role"] for turn in out] == ["user", "assistant", "user"]

    def test_a_prefill_is_refused_where_the_model_refuses_it(self) -> None:
        messages = [USER, {"role": "assistant", "content": "{"}]
        assert refused(messages=messages)[0] == "messages"
        assert turns(messages, OLD)[-1]["content"] == [{"type": "text", "text": "{"}]

    def test_refusals_of_the_past_are_text(self) -> None:
        messages = [USER, {"role": "assistant", "content": None, "refusal": "no"}, USER]
        assert turns(messages)[1]["content"] == [{"type": "text", "text": "no"}]

    def test_an_unknown_role(self) -> None:
        assert refused(messages=[{"role": "critic", "content": "x"}])[0] == "messages[0].role"


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

    def test_c22_the_legacy_form(self) -> None:
        messages = [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "1"},
        ]
        functions = [{"name": "f", "parameters": {"type": "object"}}]
        body = translated(messages=messages, functions=functions, function_call={"name": "f"})
        assert body["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]
        assert body["tool_choice"] == {
            "type": "tool", "name": "f", "disable_parallel_tool_use": True
        }  # fmt: skip
        _, turn, answer = body["messages"]
        assert turn["content"][0]["id"] == answer["content"][0]["tool_use_id"]
        assert names_of(request_of(functions=functions)).legacy


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


class TestParts:
    def image(self, url: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        return turns([{"role": "user", "content": [part]}])[0]["content"][0]

    @pytest.mark.parametrize("kind", ["png", "gif", "webp", "jpeg"])
    def test_case_45_the_type_of_an_image_with_no_known_beginning_is_its_label(
        self, kind: str
    ) -> None:
        source = self.image(data_uri(b"????", f"image/{kind}"))["source"]
        assert source == {"type": "base64", "media_type": f"image/{kind}", "data": "Pz8/Pw=="}

    @pytest.mark.parametrize(
        ("content", "kind"),
        [(PNG, "png"), (JPEG, "jpeg"), (b"GIF89a..", "gif"), (b"RIFF0000WEBP", "webp")],
    )
    def test_case_44_the_first_bytes_tell_the_type(self, content: bytes, kind: str) -> None:
        block = self.image(data_uri(content, "image/bmp"))
        assert block["source"]["media_type"] == f"image/{kind}"
        assert base64.b64decode(block["source"]["data"]) == content

    def test_an_address_is_left_to_the_upstream(self) -> None:
        url = "https://example.com/a.png"
        assert self.image(url) == {"type": "image", "source": {"type": "url", "url": url}}

    @pytest.mark.parametrize(
        "url",
        ["data:image/png;base64,%%%", "data:image/png,abc", "data:", "ftp://x/y", "/etc/passwd",
         data_uri(b"<svg/>", "image/svg+xml"), data_uri(PDF, "image/png")],
    )  # fmt: skip
    def test_case_45_a_malformed_address(self, url: str) -> None:
        part = {"type": "image_url", "image_url": {"url": url}}
        messages = [{"role": "user", "content": [part]}]
        assert refused(messages=messages)[0] == "messages[0].content[0].image_url"

    def file(self, **file: Any) -> Any:
        part = {"type": "file", "file": file}
        return turns([{"role": "user", "content": [part]}])[0]["content"][0]

    @pytest.mark.parametrize(
        "data", [data_uri(PDF, "application/pdf"), base64.b64encode(PDF).decode()]
    )
    def test_c20_a_pdf(self, data: str) -> None:
        block = self.file(file_data=data, filename="a.pdf")
        assert block["type"] == "document"
        assert block["title"] == "a.pdf"
        assert block["source"]["media_type"] == "application/pdf"

    def test_a_text_and_an_image_as_files(self) -> None:
        block = self.file(file_data=data_uri("né".encode(), "text/markdown"))
        assert block["source"] == {"type": "text", "media_type": "text/plain", "data": "né"}
        assert self.file(file_data=data_uri(PNG, "image/png"))["type"] == "image"

    def test_files_that_cant_be_sent(self) -> None:
        def param(**file: Any) -> str | None:
            return refused(
                messages=[{"role": "user", "content": [{"type": "file", "file": file}]}]
            )[0]

        assert param(file_id="file-1") == "messages[0].content[0].file.file_id"
        assert param(file_data=data_uri(b"\xff\x00", "application/zip")) == (
            "messages[0].content[0].file.file_data"
        )


class TestCaching:
    def test_breakpoints_pass(self) -> None:
        mark = {"type": "ephemeral"}
        messages = [
            {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": mark}]},
            {"role": "user", "content": [
                {"type": "text", "text": "x",
                 "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}]},
        ]  # fmt: skip
        body = translated(messages=messages, tools=[{**tool(), "cache_control": mark}])
        assert body["system"][0]["cache_control"] == mark
        assert body["tools"][0]["cache_control"] == mark
        last = body["messages"][0]["content"][0]
        assert last["cache_control"] == {"type": "ephemeral", "ttl": "1h"}

    def test_on_results(self) -> None:
        mark = {"type": "ephemeral"}
        out = turns([USER, calls(call()), {**result(), "cache_control": mark}])
        assert out[-1]["content"][0]["cache_control"] == mark

    def test_on_messages(self) -> None:
        mark = {"cache_control": {"type": "ephemeral"}}
        answer = calls(call(), content="x", **mark)
        out = turns([{**USER, **mark}, answer, result()])
        assert out[0]["content"][0] == {"type": "text", "text": "hi", **mark}
        assert ["cache_control" in block for block in out[1]["content"]] == [False, True]

    def test_no_more_than_four(self) -> None:
        part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
        assert len(turns([{"role": "user", "content": [part] * 4}])[0]["content"]) == 4
        assert refused(messages=[{"role": "user", "content": [part] * 5}])[0] == "messages"


class TestSampling:
    def test_where_all_are_taken(self) -> None:
        body = translated(OLD, temperature=1.7, top_k=40)
        assert (body["temperature"], body["top_k"]) == (1.0, 40)
        assert translated(OLD, temperature=0)["temperature"] == 0
        assert translated(OLD, top_p=0.5)["top_p"] == 0.5

    def test_only_one_of_two_goes(self) -> None:
        assert "top_p" not in translated(OLD, temperature=0.2, top_p=0.5)
        body = translated(OLD, temperature=1, top_p=0.5)
        assert "temperature" not in body
        assert body["top_p"] == 0.5

    @pytest.mark.parametrize("model", ["claude-sonnet-5", "claude-opus-5"])
    def test_dropped_where_refused_upstream(self, model: str) -> None:
        body = translated(profile_of(model), temperature=0.2, top_p=0.5, top_k=3)
        assert not {"temperature", "top_p", "top_k"} & body.keys()

    def test_thinking_forbids_most(self) -> None:
        body = translated(
            OLD, max_tokens=9000, reasoning_effort="low", temperature=0.2, top_p=0.1, top_k=3
        )
        assert not {"temperature", "top_k"} & body.keys()
        assert body["top_p"] == 0.95

    @pytest.mark.parametrize(("name", "value"), [("temperature", 2.1), ("top_p", -1)])
    def test_out_of_range(self, name: str, value: float) -> None:
        assert refused(**{name: value})[0] == name


class TestThinking:
    @pytest.mark.parametrize(
        ("model", "asked", "effort"),
        [
            ("claude-opus-5", "minimal", "low"),
            ("claude-opus-5", "xhigh", "xhigh"),
            ("claude-opus-4-6", "xhigh", "high"),
            ("claude-opus-4-6", "max", "max"),
        ],
    )
    def test_c25_adaptive(self, model: str, asked: str, effort: str) -> None:
        body = translated(profile_of(model), reasoning_effort=asked)
        assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
        assert body["output_config"] == {"effort": effort}

    def test_a_budget_leaves_room_for_the_answer(self) -> None:
        def budget(limit: int, effort: str) -> Any:
            body = translated(OLD, max_tokens=limit, reasoning_effort=effort)
            assert "output_config" not in body
            return body.get("thinking", {}).get("budget_tokens")

        assert budget(64_000, "max") == 32_768
        assert budget(64_000, "low") == 1024
        assert budget(4000, "high") == 3000
        assert budget(1300, "high") is None

    def test_effort_of_opus_4_5(self) -> None:
        body = translated(profile_of("claude-opus-4-5"), max_tokens=9000, reasoning_effort="xhigh")
        assert body["thinking"]["type"] == "enabled"
        assert body["output_config"] == {"effort": "high"}

    def test_no_thinking(self) -> None:
        assert translated(reasoning_effort="none")["thinking"] == {"type": "disabled"}
        for model in ("claude-fable-5", "claude-sonnet-4-5", "claude-3-opus"):
            assert "thinking" not in translated(profile_of(model), reasoning_effort="none")

    def test_bad_efforts(self) -> None:
        assert refused(reasoning_effort="extreme")[0] == "reasoning_effort"
        assert refused(profile_of("claude-3-opus"), reasoning_effort="low") == (
            "reasoning_effort", "unsupported_parameter"
        )  # fmt: skip

    def test_a_forced_tool_excludes_a_budget(self) -> None:
        members = {"tools": [tool()], "tool_choice": "required", "reasoning_effort": "low"}
        assert "thinking" not in translated(OLD, max_tokens=9000, **members)
        assert translated(NEW, **members)["thinking"]["type"] == "adaptive"


THOUGHT = {"type": "thinking", "thinking": "hm\u00e9", "signature": "c2ln+/=="}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}


class TestThinkingHistory:
    def test_case_50_blocks_return_as_they_came(self) -> None:
        raw = '{"type":"thinking","thinking":"h\\u00e9\\/","signature":"c2ln+/=="}'
        body = {
            "model": "m", "max_tokens": 9,
            "messages": [USER, calls(call(), thinking_blocks=["@"]), result()],
        }  # fmt: skip
        text = json.dumps(body).replace('"@"', raw).encode()
        sent = to_messages(read_request(text, "messages"), NEW)
        assert b'"thinking":"h\\u00e9\\/","signature":"c2ln+/=="' in sent

    def test_order_and_index(self) -> None:
        blocks = [{"index": 0, **THOUGHT}, {"index": 1, **REDACTED}]
        out = turns([USER, calls(call(), content="t", thinking_blocks=blocks), result()])
        assert out[1]["content"][:2] == [THOUGHT, REDACTED]
        assert [block["type"] for block in out[1]["content"][2:]] == ["text", "tool_use"]

    def test_case_51_a_signature_alone_is_enough(self) -> None:
        empty = {"type": "thinking", "thinking": "", "signature": "s"}
        nothing = {"type": "thinking", "thinking": "", "signature": ""}
        out = turns([USER, calls(call(), thinking_blocks=[nothing, empty]), result()])
        assert [block["type"] for block in out[1]["content"]] == ["thinking", "tool_use"]

    @pytest.mark.parametrize(
        "block",
        [{"type": "thinking", "thinking": "x"}, {"type": "redacted_thinking", "data": ""},
         {"type": "text", "text": "x"}, {}],
    )  # fmt: skip
    def test_blocks_that_nobody_signed(self, block: Any) -> None:
        messages = [USER, calls(call(), thinking_blocks=[block]), result()]
        assert refused(messages=messages)[0] == "messages[1].thinking_blocks[0]"

    def test_case_50_without_its_blocks_a_loop_goes_on_without_a_budget(self) -> None:
        def thinking(*messages: Any) -> Any:
            members = {"messages": [USER, *messages], "reasoning_effort": "low"}
            return translated(OLD, max_tokens=9000, **members).get("thinking")

        assert thinking(calls(call()), result()) is None
        assert thinking(calls(call(), thinking_blocks=[THOUGHT]), result()) is not None
        assert thinking(calls(call()), result(), {"role": "assistant", "content": "x"}, USER)


class TestFormats:
    def schema(self, schema: Any, **more: Any) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}
        return translated(response_format=form)["output_config"]["format"]["schema"]

    def test_c12_objects_are_closed(self) -> None:
        inner = {"type": "object", "properties": {"x": {"type": "string"}}}
        schema = {"type": "object", "properties": {"a": inner, "b": {"items": inner}},
                  "additionalProperties": True, "required": ["a"]}  # fmt: skip
        sent = self.schema(schema, strict=True)
        closed = {**inner, "additionalProperties": False}
        assert sent == {
            "type": "object",
            "properties": {"a": closed, "b": {"items": closed}},
            "required": ["a"],
            "additionalProperties": False,
        }

    def test_limits_become_hints(self) -> None:
        sent = self.schema({"type": "object", "properties": {
            "n": {"type": "integer", "minimum": 3, "description": "d"},
            "l": {"type": "array", "minItems": 1, "maxItems": 2},
            "t": {"type": "string", "format": "email"},
            "u": {"type": "string", "format": "odd", "default": "x"},
        }})["properties"]  # fmt: skip
        assert sent["n"] == {"type": "integer", "description": "d\n\n{minimum: 3}"}
        assert sent["l"] == {"type": "array", "minItems": 1, "description": "{maxItems: 2}"}
        assert sent["t"] == {"type": "string", "format": "email"}
        assert sent["u"]["description"] == '{format: "odd", default: "x"}'

    def test_definitions_and_variants(self) -> None:
        schema = {
            "$defs": {"A": {"type": "object", "properties": {}}, "B": {"$ref": "#/$defs/A"}},
            "oneOf": [{"$ref": "#/$defs/B"}, {"type": "null"}],
        }
        sent = self.schema(schema)
        assert sent["anyOf"] == schema["oneOf"]
        assert sent["$defs"]["A"]["additionalProperties"] is False

    @pytest.mark.parametrize(
        "schema",
        [
            {"$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"},
            {"type": "object", "properties": {"x": {"$ref": "#"}}},
            {"$ref": "https://example.com/s.json"},
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"not": {"type": "null"}},
        ],
    )
    def test_what_cant_be_promised(self, schema: Any) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        assert refused(response_format=form) == (
            "response_format.json_schema.schema", "unsupported_parameter"
        )  # fmt: skip

    def test_c13_json_object_is_an_instruction(self) -> None:
        body = translated(response_format={"type": "json_object"})
        assert "JSON object" in body["system"][-1]["text"]
        assert "output_config" not in body

    def test_other_formats(self) -> None:
        assert translated(response_format={"type": "text"}) == translated()
        assert refused(response_format={"type": "grammar"})[0] == "response_format"
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        assert refused(profile_of("claude-3-opus"), response_format=form)[0] == "response_format"
        form = {"type": "json_schema", "json_schema": {"name": "n"}}
        assert refused(response_format=form)[0] == "response_format.json_schema.schema"


_MEMBERS = (
    "messages", "tools", "tool_choice", "response_format", "stop", "metadata", "functions",
    "function_call", "reasoning_effort", "temperature", "logit_bias", "thing",
)  # fmt: skip


def _models() -> Iterator[str]:
    yield from ("claude-opus-5", "claude-sonnet-4-5", "claude-3-opus")


@settings(deadline=None, max_examples=200)
@given(
    members=st.dictionaries(st.sampled_from(_MEMBERS), json_values, max_size=3),
    model=st.sampled_from(list(_models())),
)
def test_anything_is_translated_or_refused(members: dict[str, Any], model: str) -> None:
    try:
        request = request_of(**members)
        body = json.loads(to_messages(request, profile_of(model)))
    except InvalidRequest:
        return
    assert body["messages"]
