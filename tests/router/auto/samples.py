"""Models, tiers and requests for tests of auto routing."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.router.auto.choice import AutoChoice, Course
from sluice.router.auto.decision import Decision
from sluice.router.auto.documents import AutoPolicy, RoutingDocument
from sluice.router.auto.needs import Needs
from sluice.router.catalog import Capability, Deployment, Model
from sluice.router.complexity.scored import Scored
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import RequestView, read_view
from sluice.router.plan import Route
from sluice.wire.objects import RawObject
from sluice.wire.request import Request

CHAT = Needs(frozenset[Capability]({"chat"}), 100, "interactive")


def model(
    name: str,
    *more: Capability,
    context_length: int = 1_000,
    weights: tuple[int, ...] = (100,),
) -> Model:
    deployments = tuple(
        Deployment("p", f"{name}-{number}", weight) for number, weight in enumerate(weights)
    )
    return Model(
        name, context_length, frozenset({"chat", *more}), frozenset({"interactive"}), deployments
    )


def policy(*tiers: dict[str, Any], **more: Any) -> AutoPolicy:
    """Of `small` and `large`, a third of the requests for the latter, but for what is given."""
    both = (
        {"name": "economy", "models": {"small": 1}},
        {"name": "quality", "models": {"large": 1}, "share": 0.3},
    )
    return msgspec.convert({"tiers": tiers or both, **more}, AutoPolicy)


def choice() -> AutoChoice:
    """Of `small` by its score, where `large` would have answered without `auto`."""
    told = ("economy; by=score; score=", "")
    models = (model("small"), model("large"))
    tiers = {"small": "economy", "large": "quality"}
    decision = Decision("economy", 0, None, "score", models, tiers, "large", told)
    course = Course("auto", "rule", CHAT.capabilities, decision, Route(models[0]))
    return AutoChoice(course, 0.1, (), b"", CHAT.tokens, b"c", "economy")


def document(**more: Any) -> RoutingDocument:
    return RoutingDocument(auto=policy(**more))


class ByLength(Scorer):
    """Scores a prompt by how much of 100 characters it has: what it gives is plain to see."""

    name = "by-length"
    native = None
    quantiles = tuple(number / 100 for number in range(101))

    def __init__(self) -> None:
        """Nothing to load."""

    def read(self, members: RawObject) -> tuple[RequestView, Scored]:
        view = read_view(members)
        return view, self.score(view)

    def score(self, view: RequestView) -> Scored:
        return Scored(min(len(view.text) / 100, 1.0), ("length=+0.50",), b"features")


def request(text: str, **members: Any) -> Request:
    said = {} if "input" in members else {"messages": [{"role": "user", "content": text}]}
    body = {**said, **members}
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    return Request(raw, model=members.get("model", "auto"), max_tokens=10, prompt_characters=200)
