"""Texts, images, files and thinking for Anthropic."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from sluice.wire.anthropic_request import to_messages
from sluice.wire.request import read_request
from tests.wire.anthropic_requests import (
    JPEG,
    NEW,
    OLD,
    PDF,
    PNG,
    USER,
    call,
    calls,
    data_uri,
    refused,
    result,
    tool,
    translated,
    turns,
)


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
