"""Chat requests as requests of Anthropic's Messages: what is translated, refused and dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.anthropic_profile import profile_of
from sluice.wire.anthropic_request import to_messages
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import read_request
from tests.wire.anthropic_requests import (
    NEW,
    OLD,
    USER,
    USER_TURN,
    call,
    calls,
    refused,
    request_of,
    result,
    tool,
    translated,
    turns,
)
from tests.wire.pieces import deep, json_values


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


_MEMBERS = (
    "messages", "tools", "tool_choice", "response_format", "stop", "metadata", "reasoning_effort",
    "temperature", "logit_bias", "thing",
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
