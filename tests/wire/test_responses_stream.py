"""Chat streams as Responses events: their order, their numbers, how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.wire.codec import ClientStream
from sluice.wire.responses_answer import to_response
from sluice.wire.responses_items import unseal
from tests.wire.pieces import cuts
from tests.wire.responses_events import (
    CALLS,
    MIXED,
    START,
    TEXT,
    USAGE,
    call,
    chained,
    chunk,
    client_stream,
    echo,
    ended,
    event,
    events,
    final,
    kinds,
    run,
)


def test_it_is_what_the_seam_asks_for() -> None:
    outer: ClientStream = client_stream()
    assert outer.feed(b"") == b""


class TestOrder:
    def test_r02_text(self) -> None:
        assert kinds(run(TEXT)) == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]

    def test_r03_calls(self) -> None:
        assert kinds(run(CALLS)) == [
            "created",
            "in_progress",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]

    def test_reasoning_text_custom_and_namespaced_calls(self) -> None:
        out = run(MIXED)
        assert kinds(out) == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
        reasoning, message, patch, spawn = final(out)["output"]
        assert reasoning["content"][0]["text"] == "hm"
        assert message["content"][0]["text"] == "see"
        assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin")
        assert (spawn["name"], spawn["namespace"], spawn["arguments"]) == ("spawn", "agents", "{}")

    def test_a_summary_has_events_of_its_own(self) -> None:
        out = run(MIXED, echo(reasoning={"summary": "auto"}))
        assert kinds(out)[2:9] == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
        ]
        assert final(out)["output"][0]["summary"][0]["text"] == "hm"

    def test_a_refusal(self) -> None:
        out = run(START + chunk(content="I ") + chunk(refusal="no") + ended("content_filter"))
        assert kinds(out)[5:11] == [
            "output_text.done",
            "content_part.done",
            "content_part.added",
            "refusal.delta",
            "refusal.done",
            "content_part.done",
        ]
        (message,) = final(out)["output"]
        assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
        assert message["status"] == "incomplete"

    def test_text_after_a_call_is_another_message(self) -> None:
        upstream = START + chunk(content="a") + chunk(tool_calls=[call(0, "c", "weather", "{")])
        upstream += chunk(content="b") + chunk(tool_calls=[call(0, None, None, "}")]) + ended()
        output = final(run(upstream))["output"]
        assert [item["type"] for item in output] == ["message", "function_call", "message"]
        assert output[1]["arguments"] == "{}"

    def test_each_event_says_where_it_belongs(self) -> None:
        out = run(MIXED)
        output = final(out)["output"]
        for one in events(out):
            if "item_id" in one:
                assert output[one["output_index"]]["id"] == one["item_id"]
            elif "item" in one:
                assert output[one["output_index"]]["id"] == one["item"]["id"]

    def test_deltas_add_up_to_what_is_done(self) -> None:
        for upstream in (TEXT, CALLS, MIXED):
            whole: dict[tuple[str, str], str] = {}
            for one in events(run(upstream)):
                stem = one["type"].rpartition(".")[0]
                if one["type"].endswith(".delta"):
                    key = (stem, one["item_id"])
                    whole[key] = whole.get(key, "") + one["delta"]
                elif (stem, one.get("item_id", "")) in whole:
                    text = one.get("text", one.get("arguments", one.get("input")))
                    assert whole[stem, one["item_id"]] == text


class TestEnding:
    @pytest.mark.parametrize(
        ("finish", "reason"),
        [("length", "max_output_tokens"), ("content_filter", "content_filter")],
    )
    def test_r08_a_cut_answer_ends_incomplete(self, finish: str, reason: str) -> None:
        out = run(START + chunk(content="fo") + ended(finish))
        assert kinds(out)[-1] == "incomplete"
        assert final(out)["incomplete_details"] == {"reason": reason}
        assert final(out)["output"][-1]["status"] == "incomplete"

    def test_r08_only_the_last_item_was_cut(self) -> None:
        upstream = CALLS.replace(b'"tool_calls", "logprobs"', b'"length", "logprobs"')
        assert [item["status"] for item in final(run(upstream))["output"]] == [
            "completed",
            "incomplete",
        ]

    def test_usage_is_in_the_closing_event_only(self) -> None:
        found = events(run(TEXT))
        assert found[0]["response"]["usage"] is None
        assert found[-1]["response"]["usage"] == {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        }

    def test_case_22_missing_usage_is_estimated(self) -> None:
        usage = final(run(START + chunk(content="x" * 40) + ended(usage=None)))["usage"]
        assert usage["output_tokens"] == 10
        assert usage["input_tokens"] > 0

    def test_nothing_of_the_closing_event_comes_before_the_tail(self) -> None:
        stream = chained(client_stream())
        before = stream.feed(TEXT) + stream.end()
        assert b"response.completed" not in before
        assert kinds(before + stream.tail())[-1] == "completed"

    def test_the_response_is_kept_for_the_store(self) -> None:
        outer = client_stream()
        stream = chained(outer)
        out = stream.feed(TEXT) + stream.end()
        assert outer.response is None
        out += stream.tail()
        assert outer.response == final(out)

    def test_an_answer_without_anything_has_an_empty_message(self) -> None:
        out = run(START + ended())
        assert final(out)["output"][0]["content"][0]["text"] == ""
        assert kinds(out)[3:6] == ["content_part.added", "output_text.done", "content_part.done"]

    def test_other_choices_are_no_part_of_it(self) -> None:
        other = {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]}
        assert final(run(event(other) + TEXT)) == final(run(TEXT))


class TestCalls:
    @pytest.mark.parametrize(
        "pieces",
        [
            [call(None, "c1", "weather", "{}"), call(None, "c2", "weather", "{}")],  # case 11
            [call(0, "c1", "weather", "{}"), call(0, "c2", "weather", "{}")],
            [
                call(0, "c1", "weather", "{"),
                call(1, "c2", "weather", "{}"),
                call(0, None, None, "}"),
            ],
            [
                call(0, "c1", None, None),
                call(0, "c1", "weather", "{}"),
                call(1, "c2", "weather", "{}"),
            ],
            [call(3, "c1", "weather", "{}"), call(7, "c2", "weather", "{}")],
        ],
    )
    def test_pieces_find_their_call(self, pieces: list[Any]) -> None:
        out = run(START + b"".join([chunk(tool_calls=[piece]) for piece in pieces]) + ended())
        assert [(item["call_id"], item["arguments"]) for item in final(out)["output"]] == [
            ("c1", "{}"),
            ("c2", "{}"),
        ]

    def test_pieces_without_index_or_id_go_to_the_latest_call(self) -> None:
        pieces = [call(None, "c1", "weather", "{"), call(None, None, None, "}")]
        out = run(START + b"".join([chunk(tool_calls=[piece]) for piece in pieces]) + ended())
        (item,) = final(out)["output"]
        assert item["arguments"] == "{}"

    def test_arguments_before_the_name_are_kept(self) -> None:
        pieces = [call(0, "c1", None, '{"a"'), call(0, None, "weather", ":1}")]
        (item,) = final(run(START + chunk(tool_calls=pieces) + ended()))["output"]
        assert (item["name"], item["arguments"]) == ("weather", '{"a":1}')

    def test_a_call_without_a_name_is_not_lost(self) -> None:
        (item,) = final(run(START + chunk(tool_calls=[call(0, "c1", None, "{}")]) + ended()))[
            "output"
        ]
        assert (item["name"], item["call_id"]) == ("", "c1")

    def test_case_6_no_arguments_are_an_empty_object(self) -> None:
        out = run(START + chunk(tool_calls=[call(0, "c1", "weather", "")]) + ended("tool_calls"))
        deltas = [one["delta"] for one in events(out) if one["type"].endswith(".delta")]
        assert deltas == ["{}"]


class TestBothModes:
    """A stream gives what the whole answer gives."""

    @settings(deadline=None)
    @given(
        reasoning=st.sampled_from(["", "hm"]),
        content=st.sampled_from(["", "na", "ïve 🚀"]),
        refusal=st.sampled_from(["", "no"]),
        calls=st.lists(
            st.sampled_from([("weather", "{}"), ("patch", '{"input":"x"}'), ("spawn", "")])
        ),
        finish=st.sampled_from(["stop", "length", "content_filter", "tool_calls"]),
        summary=st.sampled_from([None, "auto"]),
        include=st.sampled_from([[], ["reasoning.encrypted_content"]]),
    )
    def test_they_agree(
        self,
        reasoning: str,
        content: str,
        refusal: str,
        calls: list[tuple[str, str]],
        finish: str,
        summary: str | None,
        include: list[str],
    ) -> None:
        told = echo(reasoning={"summary": summary}, include=include)
        spoken = [call(at, f"c{at}", name, text) for at, (name, text) in enumerate(calls)]
        message = {
            "content": content,
            "refusal": refusal,
            "reasoning": reasoning,
            "tool_calls": spoken,
        }
        body = {"choices": [{"message": message, "finish_reason": finish}], "usage": USAGE}
        upstream = START
        for part in ({"reasoning": reasoning}, {"content": content}, {"refusal": refusal}):
            upstream += chunk(**part)
        upstream += b"".join([chunk(tool_calls=[one]) for one in spoken]) + ended(finish)
        whole = to_response(json.dumps(body).encode(), told, "resp_0a", 5, "alias")
        assert final(run(upstream, told)) == whole

    @settings(deadline=None, max_examples=60)
    @given(upstream=st.sampled_from([TEXT, CALLS, MIXED]), at=cuts)
    def test_any_split_gives_the_same_bytes(self, upstream: bytes, at: list[int]) -> None:
        assert run(upstream, at=at) == run(upstream)

    def test_case_30_one_byte_at_a_time(self) -> None:
        assert run(TEXT, at=[*range(len(TEXT))]) == run(TEXT)


class TestReasoning:
    BLOCK = {"type": "thinking", "thinking": "hm", "signature": "s"}  # noqa: RUF012

    @pytest.mark.parametrize(
        "pieces",
        [
            [{"index": 0, **BLOCK}],
            [
                {"index": 0, "type": "thinking", "thinking": "h"},
                {"index": 0, "thinking": "m"},
                {"index": 0, "signature": "s"},
            ],
            [{"type": "thinking", "thinking": "h"}, {"thinking": "m", "signature": "s"}],
        ],
    )
    def test_signed_blocks_are_put_together_and_sealed(self, pieces: list[Any]) -> None:
        upstream = START + chunk(reasoning_content="hm")
        upstream += b"".join([chunk(thinking_blocks=[piece]) for piece in pieces])
        item = final(run(upstream + chunk(content="x") + ended()))["output"][0]
        assert unseal(item["encrypted_content"]) == ("hm", [self.BLOCK])

    def test_blocks_follow_each_other(self) -> None:
        redacted = {"type": "redacted_thinking", "data": "x"}
        upstream = START + chunk(thinking_blocks=[redacted]) + chunk(thinking_blocks=[self.BLOCK])
        item = final(run(upstream + chunk(content="x") + ended()))["output"][0]
        assert unseal(item["encrypted_content"]) == ("", [redacted, self.BLOCK])
