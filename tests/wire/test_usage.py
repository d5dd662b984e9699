"""Token counts as upstreams report them, and as we estimate them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.wire.usage import Usage, UsageBody, estimate_tokens


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": None}, Usage()),
        ({"prompt_tokens": 3, "total_tokens": 9, "other": {}}, Usage(3)),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3)),
        ({"prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 1}}, Usage(0, 2)),
        ({"prompt_tokens_details": {"cache_write_tokens": 2}}, Usage(0, 0, 2)),
        ({"prompt_tokens_details": {"created_cache_tokens": 2}}, Usage(0, 0, 2)),
        ({"prompt_tokens_details": {"cache_write_tokens": 1, "created_cache_tokens": 2}},
         Usage(0, 0, 1)),
        ({"prompt_tokens": -3, "completion_tokens": -1}, Usage()),
        ({"prompt_tokens_details": {"cached_tokens": -1, "created_cache_tokens": -1}}, Usage()),
    ],
)  # fmt: skip
def test_reports_are_read(body: dict[str, Any], usage: Usage) -> None:
    assert msgspec.convert(body, UsageBody).usage() == usage


@given(characters=st.integers(min_value=0, max_value=10**9))
def test_estimates_round_up_so_that_only_nothing_is_free(characters: int) -> None:
    tokens = estimate_tokens(characters)
    assert (tokens - 1) * 4 < characters <= tokens * 4
