"""What operators may say of an alias."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.router.auto.documents import RoutingDocument, split_mode
from tests.router.auto.samples import policy

LOW: dict[str, Any] = {"name": "low", "models": {"a": 1}}
HIGH: dict[str, Any] = {"name": "high", "models": {"b": 1}, "share": 0.5}
TOP: dict[str, Any] = {"name": "top", "models": {"c": 1}, "share": 0.5}


@pytest.mark.parametrize(
    ("tiers", "more", "reason"),
    [
        ((LOW,), {}, "length >= 2"),
        ((LOW, {**HIGH, "name": "low"}), {}, "twice"),
        (({**LOW, "share": 0.5}, HIGH), {}, "what the others leave"),
        ((LOW, {"name": "high", "models": {"b": 1}}), {}, "needs a `share`"),
        ((LOW, {**HIGH, "from_score": 0.5}), {}, "needs a `share`"),
        ((LOW, HIGH, {**TOP, "share": None, "from_score": 0.9}), {}, "either"),
        ((LOW, HIGH, {**TOP, "share": 0.6}), {}, "exceed 1"),
        ((LOW, {**HIGH, "share": 1.5}), {}, "<= 1"),
        ((LOW, {**HIGH, "models": {}}), {}, "length >= 1"),
        ((LOW, {**HIGH, "models": {"b": -1}}), {}, ">= 0"),
        ((LOW, HIGH), {"floor": "nope"}, "none of the tiers"),
        ((LOW, HIGH), {"floor": "high", "ceiling": "low"}, "above the ceiling"),
        ((LOW, {**HIGH, "name": "Not\n"}), {}, "regex"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tiers: tuple[dict[str, Any], ...], more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=reason):
        policy(*tiers, **more)


def test_scores_must_not_fall() -> None:
    falling = [
        {"name": name, "models": {name: 1}, "from_score": score}
        for name, score in (("high", 0.6), ("top", 0.5))
    ]
    with pytest.raises(msgspec.ValidationError, match="must not fall"):
        policy(LOW, *falling)


@pytest.mark.parametrize(
    "body",
    [{}, {"weights": {"a": 0}}, {"weights": {}}, {"weights": {"a": 1}, "auto": {}}, {"other": 1}],
)
def test_a_document_says_one_thing(body: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, RoutingDocument)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("auto", ("auto", None)),
        ("auto:quality", ("auto", "quality")),
        ("team:x:economy", ("team:x", "economy")),
        ("auto:best", ("auto:best", None)),
        (":quality", (":quality", None)),
        ("", ("", None)),
    ],
)
def test_a_word_after_an_alias(name: str, parts: tuple[str, str | None]) -> None:
    assert split_mode(name) == parts
