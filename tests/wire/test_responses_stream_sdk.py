"""Responses events made of chat: how they fail, and what the SDK makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIError
from pydantic import BaseModel

from sluice.wire.errors import ErrorDetail
from sluice.wire.responses_stream import ResponsesFromChat
from tests.wire.pieces import json_values
from tests.wire.responses_events import (
    CALLS,
    FUNCTION,
    MIXED,
    START,
    TEXT,
    call,
    chunk,
    client_stream,
    echo,
    ended,
    event,
    events,
    kinds,
    run,
)
from tests.wire.sdk import sdk


class Person(BaseModel):
    name: str


class TestFailing:
    DETAIL = ErrorDetail("broken", code="upstream_connection_lost")

    def failed(self, *pieces: bytes) -> tuple[bytes, ResponsesFromChat]:
        outer = client_stream()
        out = b"".join([outer.feed(piece) for piece in pieces])
        return out + outer.error(self.DETAIL), outer

    @pytest.mark.parametrize("upstream", [b"", START, START + chunk(content="fo"), MIXED])
    def test_case_31_it_ends_failed_and_with_an_error(self, upstream: bytes) -> None:
        out, outer = self.failed(upstream)
        *_, response, error = events(out)
        assert kinds(out)[:2] == ["created", "in_progress"]
        assert (response["type"], error["type"]) == ("response.failed", "error")
        assert response["response"]["status"] == "failed"
        assert response["response"]["error"]["code"] == "server_error"
        assert error["code"] == "upstream_connection_lost"
        assert error["error"]["message"] == error["message"] == "broken"
        assert outer.response == response["response"]

    def test_what_was_said_until_then_is_kept(self) -> None:
        out, _ = self.failed(START + chunk(content="fo"))
        (message,) = events(out)[-2]["response"]["output"]
        assert (message["status"], message["content"][0]["text"]) == ("incomplete", "fo")

    def test_c26_the_sdk_raises(self) -> None:
        out, _ = self.failed(START + chunk(content="fo"))
        with sdk(out) as (client, _):
            seen = []
            with (
                pytest.raises(APIError, match="broken"),
                client.responses.create(model="alias", input="hi", stream=True) as stream,
            ):
                seen += [one.type for one in stream]
            with (
                pytest.raises(APIError, match="broken"),
                client.responses.stream(model="alias", input="hi") as helper,
            ):
                helper.get_final_response()

    @pytest.mark.parametrize(
        "delta", [{"tool_calls": {"a": 1}}, {"tool_calls": [7]}, {"thinking_blocks": "x"}]
    )
    def test_what_can_not_be_read_is_no_success(self, delta: dict[str, Any]) -> None:
        out = run(START + chunk(content="fo") + chunk(**delta) + ended())
        assert kinds(out)[-2:] == ["failed", "error"]

    @settings(deadline=None)
    @given(
        deltas=st.lists(
            st.dictionaries(
                st.sampled_from(["content", "reasoning", "refusal", "tool_calls"])
                | st.just("thinking_blocks"),
                st.text(max_size=3)
                | st.lists(st.just(call(0, "c", "weather", "{}")))
                | json_values,
            ),
            max_size=4,
        ),
        logprobs=json_values,
    )
    def test_no_delta_makes_it_raise(self, deltas: list[dict[str, Any]], logprobs: Any) -> None:
        outer = client_stream()
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "logprobs": logprobs}
            outer.feed(event({"choices": [choice]}))
        out = outer.tail()
        assert outer.response is not None
        assert (kinds_of(out)[-1] == "error") == (outer.response["status"] == "failed")


def kinds_of(out: bytes) -> list[str]:
    """The names of events, whatever number they begin with."""
    return [line[7:] for line in out.decode().splitlines() if line.startswith("event: ")]


class TestSDK:
    def test_r02_the_helper_follows(self) -> None:
        with (
            sdk(run(TEXT)) as (client, _),
            client.responses.stream(model="m", input="hi") as stream,
        ):
            text = "".join(
                [one.delta for one in stream if one.type == "response.output_text.delta"]
            )
            response = stream.get_final_response()
        assert text == response.output_text == "naïve 🚀"
        assert response.usage is not None
        assert response.usage.total_tokens == 18

    def test_r03_the_helper_finds_the_calls(self) -> None:
        with (
            sdk(run(CALLS)) as (client, _),
            client.responses.stream(model="m", input="hi", tools=[FUNCTION]) as stream,
        ):
            output = stream.get_final_response().output
        assert [item.arguments for item in output if item.type == "function_call"] == [
            '{"city":"Paris"}',
            "{}",
        ]

    def test_r04_the_helper_parses(self) -> None:
        upstream = START + chunk(content='{"name":') + chunk(content='"Ada"}') + ended()
        with (
            sdk(run(upstream)) as (client, _),
            client.responses.stream(model="m", input="hi", text_format=Person) as stream,
        ):
            assert stream.get_final_response().output_parsed == Person(name="Ada")

    def test_r08_the_helper_sees_that_it_is_incomplete(self) -> None:
        out = run(START + chunk(content="fo") + ended("length"))
        with sdk(out) as (client, _), client.responses.stream(model="m", input="hi") as stream:
            last = [*stream][-1]
        assert last.type == "response.incomplete"
        assert last.response.output_text == "fo"

    @pytest.mark.parametrize("request_members", [{}, {"reasoning": {"summary": "auto"}}])
    def test_mixed_output_goes_through_the_helper(self, request_members: Any) -> None:
        out = run(MIXED, echo(**request_members))
        with sdk(out) as (client, _), client.responses.stream(model="m", input="hi") as stream:
            output = stream.get_final_response().output
        assert [item.type for item in output] == [
            "reasoning",
            "message",
            "custom_tool_call",
            "function_call",
        ]
