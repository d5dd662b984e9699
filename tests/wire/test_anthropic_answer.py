"""Messages as chat completions, and Anthropic's errors in OpenAI's terms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai.types.chat import ChatCompletion

from sluice.wire.answer import Answer
from sluice.wire.anthropic_answer import NameMap, read_anthropic_error, read_message
from sluice.wire.errors import ErrorDetail
from sluice.wire.usage import Usage
from tests.wire.pieces import deep, json_values

TEXT = {"type": "text", "text": "hi"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}


def message(*content: Any, stop: str | None = "end_turn", **more: Any) -> bytes:
    usage = {"input_tokens": 100, "output_tokens": 20}
    body = {
        "id": "msg_01A", "type": "message", "role": "assistant", "model": "claude-x",
        "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage, **more,
    }  # fmt: skip
    return json.dumps(body).encode()


def answer(body: bytes, names: NameMap | None = None) -> tuple[dict[str, Any], Usage]:
    read = read_message(body, "alias", names or NameMap(), 40, 1_700_000_000)
    assert isinstance(read, Answer)
    chat: dict[str, Any] = json.loads(read.body)
    ChatCompletion.model_validate(chat, strict=True)
    return chat, read.usage


def choice(body: bytes, names: NameMap | None = None) -> Any:
    return answer(body, names)[0]["choices"][0]


class TestMessages:
    def test_c01_a_text(self) -> None:
        chat, usage = answer(message(TEXT, {"type": "text", "text": " there"}))
        assert chat == {
            "id": "chatcmpl-01A",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "alias",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hi there", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }
        assert usage == Usage(100, output_tokens=20)

    @pytest.mark.parametrize(
        ("stop", "finish"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),  # C14
            ("model_context_window_exceeded", "length"),
            ("pause_turn", "length"),
            ("news", "stop"),
        ],
    )
    def test_why_it_ended(self, stop: str, finish: str) -> None:
        assert choice(message(TEXT, stop=stop))["finish_reason"] == finish

    def test_c06_calls_of_tools(self) -> None:
        got = choice(message(USE, {**USE, "id": "toolu_2", "input": {}}, stop="tool_use"))
        assert got["finish_reason"] == "tool_calls"
        assert got["message"]["content"] is None
        assert [call["id"] for call in got["message"]["tool_calls"]] == ["toolu_1", "toolu_2"]
        arguments = [call["function"]["arguments"] for call in got["message"]["tool_calls"]]
        assert [json.loads(text) for text in arguments] == [{"a": 1}, {}]

    def test_case_9_a_call_ends_as_one(self) -> None:
        assert choice(message(TEXT, USE))["finish_reason"] == "tool_calls"
        assert choice(message(TEXT, USE, stop="max_tokens"))["finish_reason"] == "length"

    def test_case_18_text_before_a_call_is_kept(self) -> None:
        got = choice(message(TEXT, USE, stop="tool_use"))["message"]
        assert got["content"] == "hi"
        assert len(got["tool_calls"]) == 1

    def test_case_49_names_are_the_clients(self) -> None:
        got = choice(message({**USE, "name": "a_b_1"}), NameMap({"a_b_1": "a.b"}))
        assert got["message"]["tool_calls"][0]["function"]["name"] == "a.b"

    def test_n12_a_refusal_discards_what_was_said(self) -> None:
        details = {"type": "refusal", "explanation": "no way"}
        got = choice(message(TEXT, USE, stop="refusal", stop_details=details))
        assert got["finish_reason"] == "content_filter"
        assert got["message"] == {"role": "assistant", "content": None, "refusal": "no way"}
        assert choice(message(stop="refusal"))["message"]["refusal"]

    def test_c25_thinking(self) -> None:
        thought = {"type": "thinking", "thinking": "hmé", "signature": "s=="}
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        sealed = {"type": "thinking", "thinking": "", "signature": "t=="}  # case 51
        redacted = {"type": "redacted_thinking", "data": "x"}
        got = choice(message(thought, empty, sealed, redacted, TEXT))["message"]
        assert got["reasoning_content"] == "hmé"
        assert got["thinking_blocks"] == [thought, sealed, redacted]
        assert got["content"] == "hi"

    def test_c25_blocks_of_thinking_keep_their_bytes(self) -> None:
        block = b'{"type":"thinking", "thinking":"\\u00e9\\/", "signature":"s"}'
        body = message("@").replace(b'"@"', block)
        read = read_message(body, "alias", NameMap(), 0, 0)
        assert isinstance(read, Answer)
        assert block in read.body

    def test_unknown_blocks_are_ignored(self) -> None:
        assert choice(message({"type": "novel", "text": "no"}, TEXT))["message"]["content"] == "hi"

    def test_case_80_cached_tokens_count_once(self) -> None:
        usage = {
            "input_tokens": 3, "cache_creation_input_tokens": 12304, "cache_read_input_tokens": 7,
            "output_tokens": 550, "output_tokens_details": {"thinking_tokens": 50},
            "service_tier": "standard",
        }  # fmt: skip
        chat, read = answer(message(TEXT, usage=usage))
        assert read == Usage(12314, 7, 12304, 550)
        assert chat["usage"]["prompt_tokens"] == 12314
        assert chat["usage"]["total_tokens"] == 12864
        assert chat["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 7, "cache_write_tokens": 12304
        }  # fmt: skip
        assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 50}
        assert chat["service_tier"] == "default"

    def test_missing_usage_is_estimated(self) -> None:
        _, usage = answer(message(TEXT, usage=None))
        assert usage.estimated
        assert usage.input_tokens == 10
        assert usage.output_tokens > 0

    @pytest.mark.parametrize(
        "body",
        [b"", b"<html>", b"[]", b"{}", message(TEXT, stop=None), b'{"type":"message"}',
         message("x"), deep(), message(TEXT).replace(b"hi", b"\xff")],
    )  # fmt: skip
    def test_what_is_no_message(self, body: bytes) -> None:
        read = read_message(body, "alias", NameMap(), 0, 0)
        assert isinstance(read, ErrorDetail)
        assert read.code == "upstream_invalid_response"

    def test_an_error_under_a_200(self) -> None:
        body = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
        read = read_message(body, "alias", NameMap(), 0, 0)
        assert isinstance(read, ErrorDetail)
        assert read.message == "busy"

    @given(json_values)
    def test_any_content_is_read_or_reported(self, value: Any) -> None:
        read = read_message(message(value, TEXT), "alias", NameMap(), 0, 0)
        assert isinstance(read, Answer | ErrorDetail)


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "ours", "code"),
        [
            ("invalid_request_error", "invalid_request_error", None),
            ("not_found_error", "invalid_request_error", "model_not_found"),
            ("request_too_large", "invalid_request_error", "request_too_large"),
            ("rate_limit_error", "rate_limit_error", "rate_limit_exceeded"),
            ("overloaded_error", "overloaded_error", "server_is_overloaded"),  # case 34
            ("timeout_error", "server_error", "upstream_timeout"),
            ("api_error", "server_error", None),
            ("novel_error", "server_error", None),
        ],
    )
    def test_types(self, kind: str, ours: str, code: str | None) -> None:
        body = {"type": "error", "error": {"type": kind, "message": "m"}, "request_id": "r"}
        detail = ErrorDetail("m", ours, code=code)
        assert read_anthropic_error(json.dumps(body).encode()) == detail

    @pytest.mark.parametrize("kind", ["authentication_error", "permission_error", "billing_error"])
    def test_a14_our_credential_is_not_the_callers(self, kind: str) -> None:
        body = json.dumps({"type": "error", "error": {"type": kind, "message": "m"}}).encode()
        detail = read_anthropic_error(body)
        assert detail is not None
        assert detail.type == "server_error"

    @pytest.mark.parametrize(
        "wording",
        [
            "prompt is too long: 208310 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            "The request exceeds the model's context window",
        ],
    )
    def test_case_58_wordings_of_an_overflow(self, wording: str) -> None:
        error = {"type": "invalid_request_error", "message": wording}
        detail = read_anthropic_error(json.dumps({"type": "error", "error": error}).encode())
        assert detail is not None
        assert detail.code == "context_length_exceeded"

    @pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error":"x"}', b"[1]", deep()])
    def test_what_is_no_error(self, body: bytes) -> None:
        assert read_anthropic_error(body) is None
