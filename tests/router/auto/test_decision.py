"""From a score to models in order."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest

from sluice.router.auto.calibration import Cut
from sluice.router.auto.decision import Ask, Decision, NoModelFits, decide
from sluice.router.auto.needs import Needs
from sluice.router.catalog import Capability, Model
from tests.router.auto.samples import CHAT, model, policy

MODELS = {
    each.name: each
    for each in (
        model("small"),
        model("medium", "tools"),
        model("large", "tools", "vision", context_length=5_000),
    )
}
THREE = (
    {"name": "economy", "models": {"small": 1}},
    {"name": "middle", "models": {"medium": 1}, "from_score": 0.4},
    {"name": "quality", "models": {"large": 1}, "from_score": 0.8},
)
CUTS = (Cut(0.4), Cut(0.8))


def conversation(number: int = 0) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def needing(*capabilities: Capability, tokens: int = 100) -> Needs:
    return Needs(frozenset({"chat", *capabilities}), tokens, "interactive")


def decided(
    score: float = 0.0, needs: Needs = CHAT, mode: str | None = None, least: int = 0, **more: Any
) -> Decision:
    return decide(
        policy(*THREE, **more), CUTS, Ask(score, needs, conversation(), mode, least), MODELS.get
    )


def names(decision: Decision) -> list[str]:
    return [each.name for each in decision.models]


@pytest.mark.parametrize(
    ("score", "tier", "order"),
    [
        (0.39, "economy", ["small", "medium", "large"]),
        (0.4, "middle", ["medium", "large", "small"]),
        (0.8, "quality", ["large", "medium", "small"]),
    ],
)
def test_the_score_decides_and_a_fault_leads_upwards_first(
    score: float, tier: str, order: list[str]
) -> None:
    decision = decided(score)
    assert (decision.tier, names(decision)) == (tier, order)
    assert decision.tiers == {"small": "economy", "medium": "middle", "large": "quality"}
    assert decision.strong == "large"


def test_the_threshold_is_told() -> None:
    assert (decided(0.1).threshold, decided(0.5).threshold) == (None, 0.4)


@pytest.mark.parametrize(
    ("mode", "tier"), [("economy", "economy"), ("balanced", "middle"), ("quality", "quality")]
)
def test_a_word_overrides_the_score(mode: str, tier: str) -> None:
    decision = decided(0.5, mode=mode)
    assert (decision.tier, decision.mode) == (tier, "score" if mode == "balanced" else mode)


def test_floor_and_ceiling() -> None:
    assert decided(0.0, floor="middle").tier == "middle"
    assert decided(0.0, mode="economy", floor="middle").tier == "middle"
    assert decided(0.0, floor="middle").models[-1].name == "small"  # in an outage
    for mode in (None, "quality"):
        below = decided(1.0, mode=mode, ceiling="middle")
        assert (below.tier, names(below), below.strong) == (
            "middle",
            ["medium", "small"],
            "medium",
        )


def test_a_conversation_keeps_its_tier_until_it_gets_harder() -> None:
    assert decided(0.1, least=1).tier == "middle"
    assert decided(0.9, least=1).tier == "quality"
    assert decided(0.1, least=2, ceiling="middle").tier == "middle"


@pytest.mark.parametrize(
    ("needs", "tier", "order"),
    [
        (needing("tools"), "middle", ["medium", "large"]),
        (needing("tools", "vision"), "quality", ["large"]),
        (needing(tokens=3_000), "quality", ["large"]),
    ],
)
def test_models_that_lack_something_are_left_out(needs: Needs, tier: str, order: list[str]) -> None:
    decision = decided(0.0, needs)
    assert (decision.tier, names(decision)) == (tier, order)


@pytest.mark.parametrize(
    ("needs", "param", "what"),
    [
        (needing("json_schema"), "response_format", "has json_schema"),
        (needing(tokens=9_000), "messages", "has a context of 9000 tokens"),
        (Needs(CHAT.capabilities, 1, "batch"), "x-tier", "is open to the batch tier"),
    ],
)
def test_what_no_model_has_is_named(needs: Needs, param: str, what: str) -> None:
    with pytest.raises(NoModelFits) as caught:
        decided(0.0, needs)
    assert (caught.value.param, caught.value.what) == (param, what)


def test_models_that_are_not_there_for_the_caller_are_passed_over() -> None:
    def find(name: str) -> Model | None:
        return MODELS[name] if name == "medium" else None

    ask = Ask(0.9, CHAT, conversation())
    assert names(decide(policy(*THREE), CUTS, ask, find)) == ["medium"]
    with pytest.raises(NoModelFits):
        decide(policy(*THREE), CUTS, ask, lambda _: None)


class TestWeightsWithinATier:
    TIERS = (
        {"name": "economy", "models": {"small": 70, "medium": 30, "spare": 0}},
        {"name": "quality", "models": {"large": 1}, "share": 0.0},
    )
    MODELS = MODELS | {"spare": model("spare")}

    def order(self, number: int) -> list[str]:
        ask = Ask(0.0, CHAT, conversation(number), "economy")
        return names(decide(policy(*self.TIERS), CUTS[:1], ask, self.MODELS.get))

    def test_each_has_its_share_of_the_conversations(self) -> None:
        first = Counter(self.order(number)[0] for number in range(4_000))
        assert first["small"] / 4_000 == pytest.approx(0.7, abs=0.02)
        assert first["spare"] == 0
        assert self.order(7)[2:] == ["spare", "large"]

    def test_a_conversation_keeps_its_model(self) -> None:
        assert self.order(3) == self.order(3)
