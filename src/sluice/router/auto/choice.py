"""Why a request goes where it goes: what is so for all of its kind, and what is its own."""

from __future__ import annotations

import msgspec

from sluice.router.auto.decision import Decision
from sluice.router.catalog import Capability
from sluice.router.plan import Route


class Course(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What an alias has for every request of a kind; see `alias.Kind`. Equal to itself alone.

    Attributes:
        alias: that was asked for, without the word after it.
        scorer: the name of what scored.
        capabilities: that a model must have.
        decision: what was decided.
        route: over the models of the decision.
    """

    alias: str
    scorer: str
    capabilities: frozenset[Capability]
    decision: Decision
    route: Route

    def tier_of(self, model: str | None) -> str:
        """The tier of the model that answered; of one that is in none, the tier decided on."""
        return self.decision.tiers.get(model or "", self.decision.tier)


class AutoChoice(msgspec.Struct, frozen=True, gc=False):
    """Why a request goes where it goes.

    Attributes:
        course: where it goes, as do all of its kind.
        score: that was decided on: the request's, or the highest of its conversation.
        reasons: what moved the request's own score most.
        features: what was scored, hashed.
        tokens: that its model's context must hold, estimated.
        conversation: what stands for its conversation.
        told: what led to the tier decided on, for `x-route-reason`.
    """

    course: Course
    score: float
    reasons: tuple[str, ...]
    features: bytes
    tokens: int
    conversation: bytes
    told: str

    def reason(self, model: str | None, calls: int) -> str:
        """For `x-route-reason`: the tier, then what led to it.

        Args:
            model: that answered, or was asked last.
            calls: upstream calls until then.
        """
        used = self.course.tier_of(model)
        if used == self.course.decision.tier:
            return self.told
        return f"{self.told}; instead={used}; after={'failure' if calls > 1 else 'rest'}"
