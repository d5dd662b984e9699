"""The conversation of a Messages request as chat messages, and without thinking of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_answer import OWN_SIGNATURE
from sluice.wire.messages_content import without_own_thinking
from sluice.wire.messages_request import read_messages_request, to_chat
from sluice.wire.tool_ids import toolu_id
from tests.wire.messages import body, chat, messages, refused, result, text, use
from tests.wire.pieces import deep

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF = {
    "type": "document",
    "title": "a.pdf",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
}
OWN = {"type": "thinking", "thinking": "x", "signature": OWN_SIGNATURE}


class TestConversation:
    def test_system_blocks_are_one_message_without_the_attribution(self) -> None:
        system = [text("x-anthropic-billing-header: cc=1"), text("a", cache_control={}), text("b")]
        assert messages(("user", "hi"), system=system) == [
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": "hi"},
        ]

    def test_the_attribution_of_a_system_text_is_its_first_line(self) -> None:
        system = "x-anthropic-billing-header: cc=1\nbe brief"
        assert messages(("user", "hi"), system=system)[0]["content"] == "be brief"

    def test_case_43_system_turns_keep_their_place(self) -> None:
        got = messages(
            ("user", "a"), ("system", [text("s")]), ("assistant", "b"), ("user", "c"), system="t"
        )
        assert [(m["role"], m["content"]) for m in got] == [
            ("system", "t"),
            ("user", "a"),
            ("system", "s"),
            ("assistant", "b"),
            ("user", "c"),
        ]

    def test_system_turns_are_gathered_where_a_template_wants_them_first(self) -> None:
        turns = [("user", "a"), ("system", "s"), ("assistant", "b"), ("user", "c")]
        asked = [{"role": role, "content": content} for role, content in turns]
        request = read_messages_request(body(messages=asked, system="t"))
        got = to_chat(request, vllm=True, system_first=True).members["messages"]
        assert [(m["role"], m["content"]) for m in json.loads(bytes(got))] == [
            ("system", "t\ns"),
            ("user", "a"),
            ("assistant", "b"),
            ("user", "c"),
        ]

    def test_case_40_results_go_before_the_users_text(self) -> None:
        got = messages(
            ("user", "hi"),
            ("assistant", [text("so"), use("a", x=1), use("b")]),
            ("user", [text("well"), result("a"), result("b", [text("1"), text("2")])]),
        )
        assert got[1:] == [
            {
                "role": "assistant",
                "content": "so",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"x": 1}'},
                    },
                    {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "ok"},
            {"role": "tool", "tool_call_id": "b", "content": "1\n2"},
            {"role": "user", "content": "well"},
        ]

    def test_turns_in_a_row_count_as_one(self) -> None:
        got = messages(
            ("user", "hi"),
            ("assistant", [use("a")]),
            ("assistant", [text("and"), use("b")]),
            ("user", [result("b"), text("x")]),
            ("user", [result("a")]),
        )
        assert [m["role"] for m in got] == ["user", "assistant", "tool", "tool", "user"]
        assert [c["id"] for c in got[1]["tool_calls"]] == ["a", "b"]
        assert got[1]["content"] == "and"

    @pytest.mark.parametrize(
        "turns",
        [
            [("assistant", [use("a"), use("b")]), ("user", [result("a")])],
            [("assistant", [use("a")]), ("user", "no"), ("assistant", "x"), ("user", "y")],
            [("assistant", [use("a"), use("b")]), ("user", [result("a")]), ("assistant", "x")],
            [("assistant", [use("a")])],
        ],
    )
    def test_case_41_a_call_without_a_result_is_refused(self, turns: Any) -> None:
        asked = [{"role": role, "content": content} for role, content in [("user", "q"), *turns]]
        error = refused(messages=asked)
        assert error.param == "messages"
        assert "tool_result" in str(error)

    @pytest.mark.parametrize("content", [[result("zz")], [result("a"), result("a")]])
    def test_a_result_without_a_call_is_refused(self, content: Any) -> None:
        asked = [("user", "q"), ("assistant", [use("a")]), ("user", content)]
        error = refused(messages=[{"role": r, "content": c} for r, c in asked])
        assert error.param == f"messages[2].content[{len(content) - 1}].tool_use_id"

    def test_an_error_is_told_in_the_text(self) -> None:
        got = messages(
            ("user", "q"),
            ("assistant", [use("a"), use("b")]),
            ("user", [result("a", "no file", is_error=True), result("b", None)]),
        )
        assert [m["content"] for m in got[2:]] == ["Error: no file", ""]

    def test_images_of_results_come_in_the_users_next_message(self) -> None:
        got = messages(
            ("user", "q"),
            ("assistant", [use("a")]),
            ("user", [result("a", [PNG]), text("look")]),
        )
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
        assert got[2]["content"] == "(see the next message)"
        assert got[3] == {"role": "user", "content": [image, text("look")]}

    def test_a_found_tool_is_named(self) -> None:
        found = [{"type": "tool_reference", "tool_name": "grep"}]
        got = messages(("user", "q"), ("assistant", [use("a")]), ("user", [result("a", found)]))
        assert got[2]["content"] == "The tool grep is available."

    def test_n08_thinking_goes_back_to_vllm_alone(self) -> None:
        thought = [
            {"type": "thinking", "thinking": "why", "signature": "s"},
            {"type": "redacted_thinking", "data": "zz"},
            use("a"),
        ]
        turns: list[tuple[str, Any]] = [
            ("user", "q"),
            ("assistant", thought),
            ("user", [result("a")]),
        ]
        assert messages(*turns, vllm=True)[1]["reasoning"] == "why"
        openai = messages(*turns)[1]
        assert openai["content"] is None
        assert "reasoning" not in openai

    def test_a_turn_of_hidden_thinking_alone_is_left_out(self) -> None:
        hidden = [{"type": "redacted_thinking", "data": "zz"}]
        got = messages(("user", "a"), ("assistant", hidden), ("user", "b"))
        assert [m["role"] for m in got] == ["user", "user"]

    def test_arguments_keep_their_bytes(self) -> None:
        data = body(messages=[]).replace(
            b'"messages": []',
            b'"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":'
            b'"tool_use","id":"a","name":"f","input":{"n": 1.50,"b":123456789012345678901234}}]},'
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]',
        )
        request = to_chat(read_messages_request(data), vllm=False)
        call = json.loads(bytes(request.members["messages"]))[1]["tool_calls"][0]
        assert call["function"]["arguments"] == '{"n": 1.50,"b":123456789012345678901234}'

    @pytest.mark.parametrize("id", ["chatcmpl-tool-" + "a" * 32, "functions.f:0", "call_1"])
    def test_c33_ids_pair_up_and_upstreams_get_their_own_back(self, id: str) -> None:
        turns = [
            ("user", "q"),
            ("assistant", [use(toolu_id(id))]),
            ("user", [result(toolu_id(id))]),
        ]
        for vllm in (True, False):
            _, call, answer = messages(*turns, vllm=vllm)
            assert call["tool_calls"][0]["id"] == answer["tool_call_id"] == id

    def test_a_prefilled_answer_is_continued_by_vllm_alone(self) -> None:
        asked = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}]
        got = chat(vllm=True, messages=asked)
        assert (got["continue_final_message"], got["add_generation_prompt"]) == (True, False)
        assert refused(messages=asked).param == "messages"

    def test_nothing_said_is_refused(self) -> None:
        assert refused(messages=[{"role": "user", "content": []}], system="s").param == "messages"


class TestParts:
    def test_c20_a_pdf_is_a_file_part_for_openai(self) -> None:
        (got,) = messages(("user", [PDF]))
        data = "data:application/pdf;base64,JVBERg=="
        assert got["content"] == [
            {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
        ]
        error = refused(vllm=True, messages=[{"role": "user", "content": [PDF]}])
        assert error.param == "messages[0].content[0].source"

    @pytest.mark.parametrize(
        ("block", "want"),
        [
            (
                {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}},
                "T\nD",
            ),
            ({"type": "document", "source": {"type": "content", "content": "C"}}, "C"),
            (
                {"type": "search_result", "source": "u", "title": "T", "content": [text("x")]},
                "T\nu\nx",
            ),
        ],
    )
    def test_texts_in_other_forms_are_text(self, block: Any, want: str) -> None:
        assert messages(("user", [block]))[0]["content"] == want

    def test_images_by_address_pass(self) -> None:
        block = {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}
        assert messages(("user", [block]))[0]["content"] == [
            {"type": "image_url", "image_url": {"url": "http://x/a.png"}}
        ]

    @pytest.mark.parametrize(
        ("block", "param"),
        [
            ({"type": "image", "source": {"type": "file", "file_id": "f"}}, ".source"),
            ({"type": "image"}, ".source"),
            ({"type": "image", "source": {"type": "base64", "data": "x"}}, ".source.media_type"),
            ({"type": "document", "source": {"type": "url", "url": "http://x"}}, ".source"),
            ({"type": "container_upload", "file_id": "f"}, ""),
            ({"type": "thinking", "thinking": "x"}, ""),
            ({"type": "web_search_tool_result", "content": {"type": "error"}}, ""),
            ({"type": "text", "text": 1}, ".text"),
            ({"type": "tool_result"}, ".tool_use_id"),
        ],
    )
    def test_what_chat_has_no_form_for_is_named(self, block: Any, param: str) -> None:
        error = refused(messages=[{"role": "user", "content": [block]}])
        assert error.param == f"messages[0].content[0]{param}"

    def test_half_a_surrogate_pair_is_no_error(self) -> None:
        data = body(messages=[{"role": "user", "content": "HALF"}]).replace(b"HALF", b"a\\ud83d")
        request = to_chat(read_messages_request(data), vllm=False)
        assert json.loads(bytes(request.members["messages"]))[0]["content"] == "a\ufffd"

    def test_nesting_without_end_is_refused(self) -> None:
        data = body(system=[{"type": "text", "text": "DEEP"}]).replace(b'"DEEP"', deep())
        with pytest.raises(InvalidRequest):
            to_chat(read_messages_request(data), vllm=False)


class TestOwnThinking:
    def test_thinking_that_anthropic_never_signed_is_taken_out(self) -> None:
        foreign = {"type": "thinking", "thinking": "y", "signature": "EqQB"}
        turns = [
            {"role": "user", "content": OWN_SIGNATURE},
            {"role": "assistant", "content": [OWN, text("a")]},
            {"role": "assistant", "content": [OWN]},
            {"role": "assistant", "content": [foreign, use("a", s=OWN_SIGNATURE)]},
        ]
        members = read_messages_request(body(messages=turns)).members
        assert json.loads(bytes(without_own_thinking(members)["messages"])) == [
            turns[0],
            {"role": "assistant", "content": [text("a")]},
            turns[3],
        ]

    def test_n08_n10_others_stay_to_the_byte(self) -> None:
        members = read_messages_request(body()).members
        assert without_own_thinking(members) is members
