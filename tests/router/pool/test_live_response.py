"""What is learnt from the bytes of an answer."""

from __future__ import annotations

import pytest

from sluice.router.pool.live_response import last_usage, shows_token

USAGE = b'"usage":{"prompt_tokens":11,"total_tokens":18,"completion_tokens":7%s}'


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        (b"", None),
        (b'{"choices":[]}', None),
        (b'{"choices":[],"usage":null}', None),
        (b"{" + USAGE % b"", (11, 7, None)),
        (b"{" + USAGE % b',"prompt_tokens_details":null', (11, 7, None)),
        (b"{" + USAGE % b',"prompt_tokens_details":{"cached_tokens":4}', (11, 7, 4)),
        (b'{"usage" : { "prompt_tokens" : 3 }}', (3, 0, None)),
        (
            USAGE % b"" + b"}\n\ndata: {" + USAGE.replace(b"7", b"8") % b"",
            (11, 8, None),
        ),
        (b"{" + USAGE % b"" + b'}\n\ndata: {"usage":{"prompt_tokens":9', (11, 7, None)),  # cut off
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (rb'{"content":"\"usage\":{\"prompt_tokens\":99}"}', None),
    ],
)
def test_usage_is_found(text: bytes, usage: tuple[int, int, int | None] | None) -> None:
    found = last_usage(text)
    said = found and (found.prompt_tokens, found.completion_tokens, found.cached_tokens)
    assert said == usage


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
