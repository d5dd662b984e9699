"""What each of Anthropic's models takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.wire.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AnthropicProfile:
    """What a model of Anthropic's takes.

    Attributes:
        model: its name upstream.
        thinking: how it is asked to think: it decides itself, by a budget, or not at all.
        sampling: the sampling parameters that it takes.
        effort: the levels of effort that it takes, ascending; none where the parameter is refused.
        system_turns: takes system messages inside the conversation.
        disabled: takes `thinking: disabled`.
        prefill: takes a conversation that ends with the assistant.
        schemas: takes output formats and strict tools.
        max_output: bound on output tokens, where known.
    """

    model: str
    thinking: Literal["adaptive", "budget", "none"] = "adaptive"
    sampling: Literal["all", "default_only", "none"] = "none"
    effort: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    system_turns: bool = False
    disabled: bool = False
    prefill: bool = False
    schemas: bool = True
    max_output: int | None = None


_VERSION = re.compile(r"claude-([a-z]+)-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_BUDGET: Mapping[str, Any] = {"thinking": "budget", "sampling": "all", "prefill": True}
_OLD: Mapping[str, Any] = {**_BUDGET, "thinking": "none", "effort": (), "schemas": False}
_4_6: Mapping[str, Any] = {
    "sampling": "all",
    "effort": ("low", "medium", "high", "max"),
    "disabled": True,
}

#: What differs from a newer model that isn't known.
_MODELS: Mapping[tuple[str, int, int], Mapping[str, Any]] = {
    ("fable", 5, 0): {"system_turns": True},
    ("mythos", 5, 0): {"system_turns": True},
    ("opus", 5, 0): {"system_turns": True, "disabled": True},
    ("sonnet", 5, 0): {"sampling": "default_only", "disabled": True},
    ("opus", 4, 8): {"system_turns": True, "disabled": True},
    ("opus", 4, 7): {"disabled": True},
    ("opus", 4, 6): _4_6,
    ("sonnet", 4, 6): _4_6,
    ("opus", 4, 5): {**_BUDGET, "effort": ("low", "medium", "high"), "disabled": True},
    ("sonnet", 4, 5): {**_BUDGET, "effort": (), "disabled": True},
    ("haiku", 4, 5): {**_BUDGET, "effort": (), "disabled": True},
}


def profile_of(model: str) -> AnthropicProfile:
    """The profile of a model by its name, a date or a cloud's affixes on it notwithstanding."""
    if re.search(r"claude-(\d|instant|v\d)", model):  # names before Claude 4
        return AnthropicProfile(model, **_OLD)
    found = _VERSION.search(model)
    if found is None:
        return AnthropicProfile(model)
    version = (int(found[2]), int(found[3] or 0))
    known = _MODELS.get((found[1], *version), _OLD if version < (4, 5) else {})
    return AnthropicProfile(model, **known)


def unsupported(what: str, param: str) -> InvalidRequest:
    """The refusal of what such a model doesn't have."""
    return InvalidRequest(f"this model takes no {what}", param, "unsupported_parameter")
