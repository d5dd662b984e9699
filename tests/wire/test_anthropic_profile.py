"""What each of Anthropic's models takes."""

from __future__ import annotations

import pytest

from sluice.wire.anthropic_profile import profile_of


class TestProfiles:
    @pytest.mark.parametrize(
        ("model", "thinking", "sampling", "top"),
        [
            ("claude-fable-5", "adaptive", "none", "max"),
            ("claude-opus-4-8", "adaptive", "none", "max"),
            ("claude-sonnet-5", "adaptive", "default_only", "max"),
            ("claude-opus-4-6", "adaptive", "all", "max"),
            ("claude-opus-4-5-20251101", "budget", "all", "high"),
            ("claude-haiku-4-5@20251001", "budget", "all", None),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "budget", "all", None),
            ("claude-opus-4-20250514", "none", "all", None),
            ("claude-3-5-haiku-latest", "none", "all", None),
            ("claude-saga-7", "adaptive", "none", "max"),
            ("something-else", "adaptive", "none", "max"),
        ],
    )
    def test_a_name_gives_its_profile(
        self, model: str, thinking: str, sampling: str, top: str | None
    ) -> None:
        profile = profile_of(model)
        assert (profile.model, profile.thinking, profile.sampling) == (model, thinking, sampling)
        assert profile.effort[-1:] == ((top,) if top else ())
