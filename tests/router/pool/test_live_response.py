"""What is learnt from the bytes of an answer."""

from __future__ import annotations

import pytest

from sluice.router.pool.live_response import ReportedUsage, last_usage, shows_token

USAGE = b'"usage":{"prompt_tokens":11,"total_tokens":18,"completion_tokens":7%s}'


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        (b"", None),
        (b'{"choices":[]}', None),
        (b'{"choices":[],"usage":null}', None),
        (b"{" + USAGE % b"", ReportedUsage(11, 7, None)),
        (b"{" + USAGE % b',"prompt_tokens_details":null', ReportedUsage(11, 7, None)),
        (b"{" + USAGE % b',"prompt_tokens_details":{"cached_tokens":4}', ReportedUsage(11, 7, 4)),
        (b'{"usage" : { "prompt_tokens" : 3 }}', ReportedUsage(3, 0, None)),
        (
            USAGE % b"" + b"}\n\ndata: {" + USAGE.replace(b"7", b"8") % b"",
            ReportedUsage(11, 8, None),
        ),
        (rb'{"content":"\"usage\":{\"prompt_tokens\":99}"}', None),
    ],
)
def test_usage_is_found(text: bytes, usage: ReportedUsage | None) -> None:
    assert last_usage(text) == usage


OPENING = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"index":0}]}\n\n'


@pytest.mark.parametrize(
    ("head", "shows"),
    [
        (b"", False),
        (b": ping\n\n", False),
        (OPENING, False),
        (OPENING + OPENING, False),
        (OPENING.replace(b',"content":""', b""), False),
        (OPENING.replace(b'""', b"null"), False),
        (OPENING.replace(b'""', b'"a"'), True),
        (OPENING + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', True),
        (b'data: {"choices":[{"text":"a"}]}\n\n', True),
        (b'data: {"error":{"message":"no"}}\n\n', True),
        (b"data: [DONE]\n\n", True),
    ],
)
def test_a_first_token_is_told_from_an_opening(head: bytes, shows: bool) -> None:
    assert shows_token(head) is shows
