"""Tokens of a prompt, estimated."""

from __future__ import annotations

import pytest

from sluice.wire.errors import InvalidRequest
from sluice.wire.messages_count import count_tokens_estimate
from tests.wire.messages import TOOL, body


class TestCount:
    def test_n03_a_prompt_has_tokens(self) -> None:
        assert (
            count_tokens_estimate(b'{"model":"m","messages":[{"role":"user","content":"x"}]}') > 0
        )

    def test_system_and_tools_count(self) -> None:
        plain = count_tokens_estimate(body())
        assert count_tokens_estimate(body(system="s" * 400)) >= plain + 100
        assert count_tokens_estimate(body(tools=[TOOL])) > plain

    def test_images_and_documents_are_no_text(self) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}
        for kind in ("image/png", "application/pdf"):
            block = {"type": "image", "source": {**source, "media_type": kind}}
            tokens = count_tokens_estimate(body(messages=[{"role": "user", "content": [block]}]))
            assert 1_600 <= tokens <= 10_000

    @pytest.mark.parametrize("data", [b"{}", b'{"model":"m","messages":[]}', b"["])
    def test_bad_bodies_are_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidRequest):
            count_tokens_estimate(data)
