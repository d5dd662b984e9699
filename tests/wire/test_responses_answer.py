"""Whole chat answers as response objects, and as the SDK sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from sluice.wire.answer import UNREADABLE
from sluice.wire.errors import ErrorDetail
from sluice.wire.responses_answer import Echo, to_response
from sluice.wire.responses_items import response_of, unseal
from sluice.wire.responses_request import read_responses_request, to_chat
from tests.wire.pieces import deep, json_values
from tests.wire.sdk import sdk

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 5, "created_cache_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
PATCH = {"type": "custom", "name": "patch"}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "-",
    "tools": [{"type": "function", "name": "spawn"}],
}


def echo(**request: Any) -> Echo:
    body = json.dumps({"model": "alias", "input": "hi", **request}).encode()
    return to_chat(read_responses_request(body)).echo


def completion(finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c1", "model": "up", "choices": [choice], "usage": USAGE}


def read(body: Any, told: Echo | None = None) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = to_response(data, told or echo(), "resp_0a", 5, "alias")
    assert isinstance(found, dict), found
    Response.model_validate(found)  # the SDK's own type, strictly
    return found


def call(call_id: str | None, name: str = "f", arguments: str | None = "{}") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_r01_text_is_a_message() -> None:
    found = read(completion(content="four"))
    assert found["output"] == [
        {
            "type": "message",
            "id": "msg_0a_0",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "four", "annotations": [], "logprobs": []}],
        }
    ]
    assert (found["id"], found["created_at"], found["model"]) == ("resp_0a", 5, "alias")
    assert (found["object"], found["status"], found["error"]) == ("response", "completed", None)


def test_r01_the_sdk_finds_the_text() -> None:
    with sdk(read(completion(content="naïve 🚀"))) as (client, _):
        response = client.responses.create(model="alias", input="hi")
    assert response.output_text == "naïve 🚀"
    assert response.usage is not None
    assert response.usage.total_tokens == 18


def test_every_member_that_the_format_requires_is_there() -> None:
    required = {name for name, field in Response.model_fields.items() if field.is_required()}
    found = read(completion(content="x"))
    assert required <= set(found)
    assert {"usage", "status", "incomplete_details", "metadata", "text", "truncation"} <= set(found)


def test_the_request_is_repeated() -> None:
    said = {
        "instructions": "be brief",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_09",
        "store": False,
        "temperature": 0.5,
        "tool_choice": "auto",
        "truncation": "auto",
        "user": "u",
    }
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    form = {"format": {"type": "json_object"}, "verbosity": "low"}
    found = read(completion(content="x"), echo(**said, tools=tools, text=form))
    assert {name: found[name] for name in said} == said
    assert found["text"] == form
    assert found["tools"][0] == {**tools[0], "parameters": None, "strict": None}
    assert found["tools"][1] == tools[1]


def test_usage_is_told_in_this_format() -> None:
    assert read(completion(content="x"))["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 18,
    }


def test_case_22_missing_usage_is_estimated() -> None:
    body = {**completion(content="four" * 4), "usage": None}
    usage = read(body)["usage"]
    assert usage["output_tokens"] == 4
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + 4


def test_the_tier_that_served_is_told() -> None:
    assert read({**completion(content="x"), "service_tier": "flex"})["service_tier"] == "flex"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter")],
)
def test_r08_a_cut_answer_is_incomplete(finish: str, reason: str) -> None:
    found = read(completion(finish, content="fo"))
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": reason}
    assert found["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "repetition", None])
def test_any_other_end_is_complete(finish: str | None) -> None:
    assert read(completion(finish, content="x"))["status"] == "completed"


class TestOutput:
    def test_reasoning_text_and_calls_are_items_in_this_order(self) -> None:
        found = read(
            completion(
                "tool_calls",
                content="let me see",
                reasoning="hm",
                tool_calls=[call("c1", arguments='{"a":1}'), call("c2", arguments="")],
            )
        )
        assert kinds(found) == ["reasoning", "message", "function_call", "function_call"]
        assert [item["id"] for item in found["output"]] == [
            "rs_0a_0",
            "msg_0a_1",
            "fc_0a_2",
            "fc_0a_3",
        ]
        assert all(response_of(item["id"]) == "resp_0a" for item in found["output"])
        assert found["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert "encrypted_content" not in found["output"][0]

    def test_case_6_a_call_without_arguments_has_an_empty_object(self) -> None:
        (item,) = read(completion(tool_calls=[call("c1", arguments="")]))["output"]
        assert item["arguments"] == "{}"
        (item,) = read(completion("length", tool_calls=[call("c1", arguments=None)]))["output"]
        assert (item["arguments"], item["status"]) == ("", "incomplete")

    def test_r03_the_sdk_finds_the_call(self) -> None:
        with sdk(read(completion(tool_calls=[call("c1", "weather")]))) as (client, _):
            (item,) = client.responses.create(model="alias", input="hi").output
        assert item.type == "function_call"
        assert (item.call_id, item.name, item.arguments) == ("c1", "weather", "{}")

    def test_calls_of_one_id_get_ids_of_their_own(self) -> None:
        found = read(completion(tool_calls=[call("c"), call("c"), call(None)]))
        ids = [item["call_id"] for item in found["output"]]
        assert ids[0] == "c"
        assert len(set(ids)) == 3

    def test_a_custom_tool_s_call_comes_back_as_one(self) -> None:
        spoken = call("c1", "patch", '{"input":"*** Begin"}')
        (item,) = read(completion(tool_calls=[spoken]), echo(tools=[PATCH]))["output"]
        assert item == {
            "type": "custom_tool_call",
            "id": "ctc_0a_0",
            "call_id": "c1",
            "name": "patch",
            "input": "*** Begin",
            "status": "completed",
        }

    def test_a_namespace_comes_back(self) -> None:
        (item,) = read(completion(tool_calls=[call("c1", "spawn")]), echo(tools=[AGENTS]))["output"]
        assert (item["name"], item["namespace"]) == ("spawn", "agents")

    def test_a_refusal_is_a_part(self) -> None:
        (item,) = read(completion("content_filter", content=None, refusal="no"))["output"]
        assert item["content"] == [{"type": "refusal", "refusal": "no"}]

    @pytest.mark.parametrize("message", [{"content": ""}, {"content": None}, {"reasoning": "hm"}])
    def test_an_answer_without_text_has_an_empty_message(self, message: dict[str, Any]) -> None:
        assert read(completion(**message))["output"][-1]["content"][0]["text"] == ""

    def test_an_answer_cut_while_it_reasoned_has_none(self) -> None:
        found = read(completion("length", reasoning_content="hm"))
        assert kinds(found) == ["reasoning"]
        assert found["output"][0]["status"] == "incomplete"

    def test_logprobs_are_told(self) -> None:
        token = {"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        body = completion(content="x")
        body["choices"][0]["logprobs"] = {"content": [token]}
        (part,) = read(body)["output"][0]["content"]
        assert part["logprobs"] == [{**token, "bytes": []}]


class TestReasoning:
    def test_it_is_sealed_where_the_client_asks(self) -> None:
        told = echo(include=["reasoning.encrypted_content"])
        item = read(completion(content="x", reasoning="hm"), told)["output"][0]
        assert unseal(item["encrypted_content"]) == ("hm", [])

    def test_signed_blocks_are_always_sealed(self) -> None:
        blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
        body = completion(content="x", reasoning_content="hm", thinking_blocks=blocks)
        item = read(body)["output"][0]
        assert unseal(item["encrypted_content"]) == ("hm", blocks)

    def test_it_is_a_summary_where_the_client_asks(self) -> None:
        told = echo(reasoning={"summary": "auto"})
        item = read(completion(content="x", reasoning="hm"), told)["output"][0]
        assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
        assert unseal(item["encrypted_content"]) == ("hm", [])

    @pytest.mark.parametrize(
        "request_members", [{}, {"reasoning": {"summary": "auto"}}, {"include": ["x"]}]
    )
    def test_r05_output_can_be_sent_back(self, request_members: dict[str, Any]) -> None:
        """What chat said is what chat gets on the next turn."""
        told = echo(**request_members)
        spoken = [call("c1", "f", '{"a":1}')]
        output = read(completion(content="see", reasoning="hm", tool_calls=spoken), told)["output"]
        result = {"type": "function_call_output", "call_id": "c1", "output": "x"}
        body = json.dumps({"model": "m", "input": [*output, result]}).encode()
        (said, _) = json.loads(
            bytes(to_chat(read_responses_request(body)).request.members["messages"])
        )
        assert said == {
            "role": "assistant",
            "content": "see",
            "reasoning_content": "hm",
            "tool_calls": spoken,
        }


class TestFailing:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b'{"choices":[]}',
            b'{"choices":[{"index":1,"message":{}}]}',
            b'{"choices":[{"index":0}]}',
            b'{"choices":[{"message":{"content":7}}]}',
            b'{"choices":' + deep() + b"}",
        ],
    )
    def test_what_is_no_answer_is_none(self, body: bytes) -> None:
        assert to_response(body, Echo(), "resp_1", 5, "m") == UNREADABLE

    def test_an_error_is_told(self) -> None:
        found = to_response(b'{"error":{"message":"no"}}', Echo(), "resp_1", 5, "m")
        assert isinstance(found, ErrorDetail)
        assert found.message == "no"

    def test_an_aborted_answer_is_none(self) -> None:
        body = json.dumps(completion("abort", content="fo")).encode()
        found = to_response(body, Echo(), "resp_1", 5, "m")
        assert isinstance(found, ErrorDetail)
        assert found.code == "upstream_aborted"

    @settings(deadline=None)
    @given(
        message=st.dictionaries(
            st.sampled_from(["content", "reasoning", "refusal", "tool_calls", "thinking_blocks"]),
            json_values
            | st.lists(st.fixed_dictionaries({"id": json_values, "function": json_values})),
        ),
        logprobs=json_values | st.lists(st.fixed_dictionaries({"top_logprobs": json_values})),
    )
    def test_no_message_makes_it_fail(self, message: dict[str, Any], logprobs: Any) -> None:
        told = completion(**message)
        told["choices"][0]["logprobs"] = {"content": logprobs}
        found = to_response(json.dumps(told).encode(), Echo(), "resp_1", 5, "m")
        assert isinstance(found, (dict, ErrorDetail))
