"""Items as messages: turns, the pairing of calls and outputs, parts."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.responses_chat import ChatHistory
from sluice.wire.responses_items import seal
from sluice.wire.responses_tools import read_tools

NO_TOOLS = read_tools([])


def messages(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    placed = [(item.get("type", "message"), f"input[{at}]", item) for at, item in enumerate(items)]
    return ChatHistory(NO_TOOLS).messages(instructions, placed)


def refused(*items: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        messages(*items)
    return caught.value


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, value: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value}


def roles(found: list[dict[str, Any]]) -> str:
    """The roles' first letters, an assistant's with its calls."""
    return " ".join(
        one["role"][0] + "".join(call["id"] for call in one.get("tool_calls", [])) for one in found
    )


class TestTurns:
    def test_instructions_lead(self) -> None:
        found = messages(said("user", "hi"), instructions="be brief")
        assert found == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ]

    def test_roles_stay_where_they_are(self) -> None:
        items = [said(role, "x") for role in ("developer", "user", "assistant", "system", "user")]
        assert roles(messages(*items)) == "d u a s u"

    def test_r03_consecutive_calls_are_one_message(self) -> None:
        found = messages(call("1", arguments='{"a":1}'), call("2"), output("1", "x"), output("2"))
        assert found == [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    },
                    {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "tool", "tool_call_id": "2", "content": "ok"},
        ]

    def test_text_and_calls_of_a_turn_are_one_message(self) -> None:
        found = messages(said("assistant", "let me see"), call("1"), output("1"))
        assert found[0]["content"] == "let me see"
        assert roles(found) == "a1 t"

    @pytest.mark.parametrize(
        ("items", "expected"),
        [
            ([call("1"), output("1"), call("2"), output("2")], "a1 t a2 t"),
            ([call("1"), call("2"), output("2"), output("1")], "a12 t t"),
            ([call("1"), said("user", "x"), output("1")], "a1 t u"),
            ([call("1"), said("assistant", "x"), output("1")], "a1 t"),
            (
                [call("1"), said("developer", "x"), call("2"), output("1"), output("2")],
                "a1 t d a2 t",
            ),
            ([output("1"), call("1")], "a1 t"),
            ([said("assistant", "x"), said("assistant", "y")], "a a"),
            ([call("1"), output("1"), call("1"), output("1")], "a1 t a1 t"),
        ],
    )
    def test_outputs_stand_right_behind_their_calls(
        self, items: list[dict[str, Any]], expected: str
    ) -> None:
        assert roles(messages(*items)) == expected

    def test_outputs_in_another_order_keep_their_calls(self) -> None:
        found = messages(call("1"), call("2"), output("2", "two"), output("1", "one"))
        assert [(one["tool_call_id"], one["content"]) for one in found[1:]] == [
            ("1", "one"),
            ("2", "two"),
        ]

    def test_case_41_a_call_without_output_is_refused_by_name(self) -> None:
        error = refused(call("a"), call("b"), output("b"))
        assert "function call a" in str(error)
        assert error.param == "input"

    def test_an_output_without_call_is_refused_by_name(self) -> None:
        assert "call_id x" in str(refused(said("user", "hi"), output("x")))

    def test_a_call_without_text_gets_an_empty_object(self) -> None:
        found = messages(call("1", arguments=""), output("1"))
        assert found[0]["tool_calls"][0]["function"]["arguments"] == "{}"

    def test_a_custom_call_goes_as_a_function_of_one_text(self) -> None:
        found = messages(
            {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": 'a"b\n'},
            {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        )
        assert found[0]["tool_calls"][0]["function"] == {
            "name": "patch",
            "arguments": '{"input":"a\\"b\\n"}',
        }
        assert found[1]["content"] == "done"


class TestReasoning:
    def test_sealed_reasoning_returns_to_its_turn(self) -> None:
        block = {"type": "thinking", "thinking": "hm", "signature": "s"}
        item = {"type": "reasoning", "summary": [], "encrypted_content": seal("hm", [block])}
        found = messages(item, said("assistant", "x"), call("1"), output("1"))
        assert roles(found) == "a1 t"
        assert found[0]["reasoning_content"] == "hm"
        assert found[0]["thinking_blocks"] == [block]

    def test_open_reasoning_returns_too(self) -> None:
        item = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
        assert messages(item, said("assistant", "x"))[0]["reasoning_content"] == "hm"

    @pytest.mark.parametrize("sealed", [None, "gAAAAABo"])
    def test_reasoning_of_another_origin_is_dropped(self, sealed: str | None) -> None:
        summary = [{"type": "summary_text", "text": "thought"}]
        item = {"type": "reasoning", "summary": summary, "encrypted_content": sealed}
        assert messages(item, said("assistant", "x")) == [{"role": "assistant", "content": "x"}]

    def test_reasoning_that_led_to_nothing_is_no_message(self) -> None:
        item = {"type": "reasoning", "encrypted_content": seal("hm", [])}
        assert roles(messages(said("user", "a"), item, said("user", "b"))) == "u u"

    def test_reasoning_begins_a_turn(self) -> None:
        first, second = (
            {"type": "reasoning", "encrypted_content": seal(text, [])} for text in ("one", "two")
        )
        found = messages(first, said("assistant", "x"), second, said("assistant", "y"))
        assert [one["reasoning_content"] for one in found] == ["one", "two"]


class TestParts:
    def test_one_text_is_plain_and_several_are_parts(self) -> None:
        found = messages(said("user", [text("a")]), said("user", [text("a"), text("b")]))
        assert found[0]["content"] == "a"
        assert found[1]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            (
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64,AA", "detail": "low"},
                },
            ),
            (
                {"type": "input_file", "file_data": "data:;base64,AA", "filename": "a.pdf"},
                {"type": "file", "file": {"file_data": "data:;base64,AA", "filename": "a.pdf"}},
            ),
            ({"type": "input_file", "file_id": "f1"}, {"type": "file", "file": {"file_id": "f1"}}),
            (
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ),
            (
                {
                    "type": "input_text",
                    "text": "a",
                    "prompt_cache_breakpoint": {"mode": "explicit"},
                },
                {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
            ),
            ({"type": "refusal", "refusal": "no"}, {"type": "refusal", "refusal": "no"}),
        ],
    )
    def test_parts_are_translated(self, part: dict[str, Any], expected: dict[str, Any]) -> None:
        assert messages(said("user", [part]))[0]["content"] == [expected]

    def test_the_assistant_s_words_come_back_without_annotations(self) -> None:
        part = {"type": "output_text", "text": "hi", "annotations": [{"type": "x"}], "logprobs": []}
        assert messages(said("assistant", [part])) == [{"role": "assistant", "content": "hi"}]

    def test_images_that_a_tool_gave_follow_as_the_user_s(self) -> None:
        image = {"type": "input_image", "image_url": "https://x/y.png"}
        found = messages(
            call("1"), call("2"), output("1", [text("see"), image]), output("2", [image])
        )
        assert roles(found) == "a12 t t u"
        assert [one["content"] for one in found[1:3]] == ["see", ""]
        assert (
            found[3]["content"]
            == [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}] * 2
        )

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            (7, "input[0].content[0]"),
            ({"type": "video"}, "input[0].content[0]"),
            ({"type": "input_text"}, "input[0].content[0].text"),
            ({"type": "input_image", "file_id": "f"}, "input[0].content[0].image_url"),
            ({"type": "input_file", "file_url": "https://x"}, "input[0].content[0]"),
        ],
    )
    def test_parts_that_chat_has_not_are_refused_by_place(self, part: Any, param: str) -> None:
        assert refused(said("user", [part])).param == param


class TestItems:
    def test_traces_of_hosted_tools_are_dropped(self) -> None:
        item = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        assert roles(messages(said("user", "a"), item, said("assistant", "b"))) == "u a"

    @pytest.mark.parametrize(
        ("item", "param"),
        [
            ({"type": "compaction", "encrypted_content": "x"}, "input[0]"),
            ({"type": "local_shell_call"}, "input[0]"),
            (said("tool", "x"), "input[0].role"),
            (said("user", None), "input[0].content"),
            ({"type": "function_call", "call_id": "1", "arguments": ""}, "input[0].name"),
            ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id"),
            ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
            (output("1", 7), "input[0].output"),
        ],
    )
    def test_items_that_chat_has_not_are_refused_by_place(
        self, item: dict[str, Any], param: str
    ) -> None:
        assert refused(item).param == param
