"""The decision: from a score to models in order. Pure.

A request's tier is the highest whose cut its score reaches, within floor and ceiling. Its models
come first, those of the stronger tiers next, so that a fault costs money and not quality, and
those of the weaker ones last. Models that don't meet the request's needs are left out; where none
of a tier does, the next tier up decides. Models that rest stay in their place: dispatch passes
over them, and they may be back by then.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import msgspec

from sluice.router.auto.calibration import Cut
from sluice.router.auto.documents import ECONOMY, QUALITY, AutoPolicy
from sluice.router.auto.needs import Needs
from sluice.router.catalog import Model

#: How a decision came about, where no word of the caller's overrode the score.
BY_SCORE = "score"


class NoModelFits(Exception):
    """No model of any tier meets a request's needs.

    Attributes:
        param: the parameter at fault.
        what: what no model does or has.
    """

    def __init__(self, param: str, what: str) -> None:
        super().__init__(f"no model {what}")
        self.param = param
        self.what = what


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What is decided on.

    Attributes:
        score: the request's, or the highest of its conversation.
        needs: what its model must have.
        conversation: what stands for its conversation, 16 bytes.
        mode: the word after the alias, or None.
        least: the position of the tier that its conversation has.
    """

    score: float
    needs: Needs
    conversation: bytes
    mode: str | None = None
    least: int = 0


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes.

    Attributes:
        tier: the name of the tier that was decided on.
        position: of that tier.
        threshold: the score from which on it is the tier; None: of the first, and of one that a
            word chose.
        mode: `score`, or the word that chose.
        models: by tier, in the order in which they are to be asked.
        tiers: the tier of each model, by its name.
        strong: what would have answered without `auto`: the first of the strongest tier.
        told: what `tell` says of it, before and after the score.
    """

    tier: str
    position: int
    threshold: float | None
    mode: str
    models: tuple[Model, ...]
    tiers: Mapping[str, str]
    strong: str
    told: tuple[str, str]


def decide(
    policy: AutoPolicy,
    cuts: Sequence[Cut],
    ask: Ask,
    find: Callable[[str], Model | None],
) -> Decision:
    """Decide on one request.

    Args:
        policy: the tiers.
        cuts: where each but the first begins.
        ask: the request.
        find: a model by its name; None where there is none, or where it is not the caller's.

    Raises:
        NoModelFits: no model of a tier up to the ceiling meets the needs.
    """
    wanted = wanted_tier(policy, cuts, ask)
    found: list[Model] = []
    tiers: dict[str, str] = {}
    position, strongest, strong = -1, -1, ""
    for place in _turns(wanted, policy.highest):
        tier = policy.tiers[place]
        models = _ranked(tier.models, ask, find)
        if not models:
            continue
        if position < 0:
            position = place
        if place > strongest:
            strongest, strong = place, models[0].name
        for model in models:
            if model.name not in tiers:
                tiers[model.name] = tier.name
                found.append(model)
    if position < 0:
        raise NoModelFits(*_unmet(policy, ask, find))
    by_score = ask.mode not in (ECONOMY, QUALITY)
    name = policy.tiers[position].name
    mode = BY_SCORE if by_score else str(ask.mode)
    threshold = cuts[position - 1].score if by_score and position > 0 else None
    return Decision(
        tier=name,
        position=position,
        threshold=threshold,
        mode=mode,
        models=tuple(found),
        tiers=tiers,
        strong=strong,
        told=(
            f"{name}; by={mode}; score=",
            "" if threshold is None else f"; threshold={threshold:.3f}",
        ),
    )


def tell(decision: Decision, score: float, reasons: Sequence[str]) -> str:
    """A decision in a line.

    Args:
        decision: the decision.
        score: that it was made on.
        reasons: what moved the score most.
    """
    before, after = decision.told
    because = f'; because="{" ".join(reasons)}"' if reasons else ""
    return f"{before}{score:.3f}{after}{because}"


@cache
def _turns(wanted: int, highest: int) -> tuple[int, ...]:
    """The positions of tiers in the order in which they are asked: upwards, then downwards."""
    return (*range(wanted, highest + 1), *range(wanted - 1, -1, -1))


def wanted_tier(policy: AutoPolicy, cuts: Sequence[Cut], ask: Ask) -> int:
    """The position of the tier that a request is to have, whether or not a model of it fits.

    Args:
        policy, cuts, ask: see `decide`.
    """
    if ask.mode == ECONOMY:
        return policy.lowest
    if ask.mode == QUALITY:
        return policy.highest
    reached = ask.least
    for place, cut in enumerate(cuts, 1):
        if place > reached and cut.takes(ask.score, ask.conversation):
            reached = place
    if policy.floor is not None:
        reached = max(reached, policy.lowest)
    return reached if policy.ceiling is None else min(reached, policy.highest)


def _ranked(
    weights: Mapping[str, int], ask: Ask, find: Callable[[str], Model | None]
) -> list[Model]:
    """A tier's models that meet the needs, in an order that is the conversation's own, and in
    which each is the first of as many as its weight says (weighted rendezvous hashing)."""
    found = [
        model for name in weights if (model := find(name)) is not None and ask.needs.met_by(model)
    ]
    if len(found) > 1:
        found.sort(key=lambda model: _distance(model, weights[model.name], ask.conversation))
    return found


def _distance(model: Model, weight: int, conversation: bytes) -> float:
    if weight == 0:
        return math.inf
    digest = hashlib.blake2b(model.name.encode(), key=conversation, digest_size=8)
    return -math.log((int.from_bytes(digest.digest()) + 1) / (2**64 + 1)) / weight


def _unmet(policy: AutoPolicy, ask: Ask, find: Callable[[str], Model | None]) -> tuple[str, str]:
    reachable = policy.tiers[: policy.highest + 1]
    models = [find(name) for tier in reachable for name in tier.models]
    there = [model for model in models if model is not None]
    if not there:
        return "model", "may be used by this key"
    return ask.needs.unmet(there)
