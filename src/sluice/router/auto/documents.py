"""Routing documents: what an operator says about the requests of an alias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

#: Words after the alias, `auto:quality`: the dearest tier, the cheapest, or what the score says.
QUALITY, ECONOMY, BALANCED = "quality", "economy", "balanced"
MODES = (ECONOMY, BALANCED, QUALITY)

#: Tiers of an alias.
MOST_TIERS = 8

Alias = Annotated[
    str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$(?!\n)")
]
TierName = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[a-z0-9][a-z0-9_-]*$(?!\n)")]
Weight = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class TierPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tier of models that are as good as each other.

    Attributes:
        models: by name, each with its share of the conversations as a weight; one of weight 0
            only steps in for others.
        share: of the requests, 0 to 1, that the tier is to get; the gateway finds the score that
            gives it.
        from_score: the score from which on a request is this tier's, where it is fixed instead.
    """

    name: TierName
    models: Annotated[dict[Alias, Weight], msgspec.Meta(min_length=1, max_length=20)]
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    from_score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class AutoPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the requests of an alias are spread over tiers.

    Attributes:
        tiers: from the cheapest to the strongest. The first gets what the others leave; each of
            the others has a `share`, or each has a `from_score`.
        floor: the least tier that a request is given; outages may still lead below it.
        ceiling: the highest tier that a request ever reaches.
        sticky: a conversation stays in its tier until it gets harder.
    """

    tiers: Annotated[tuple[TierPolicy, ...], msgspec.Meta(min_length=2, max_length=MOST_TIERS)]
    floor: TierName | None = None
    ceiling: TierName | None = None
    sticky: bool = True

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError("`auto.tiers` has a name twice")
        for param in ("floor", "ceiling"):
            if getattr(self, param) not in (None, *names):
                raise ValueError(f"`auto.{param}` is none of the tiers")
        if self.lowest > self.highest:
            raise ValueError("`auto.floor` is above the ceiling")
        first, *others = self.tiers
        if (first.share, first.from_score) != (None, None):
            raise ValueError("`auto.tiers`: the first tier gets what the others leave")
        for tier in others:
            if (tier.share is None) == (tier.from_score is None):
                raise ValueError("`auto.tiers`: each but the first needs a `share` or `from_score`")
        shares = [tier.share for tier in others if tier.share is not None]
        scores = [tier.from_score for tier in others if tier.from_score is not None]
        if shares and scores:
            raise ValueError("`auto.tiers`: either shares or scores")
        if sum(shares) > 1 + 1e-9:
            raise ValueError("`auto.tiers`: the shares exceed 1")
        if scores != sorted(scores):
            raise ValueError("`auto.tiers`: `from_score` must not fall")

    @property
    def lowest(self) -> int:
        """The floor, as a position among the tiers."""
        return 0 if self.floor is None else self._position(self.floor)

    @property
    def highest(self) -> int:
        """The ceiling, as a position among the tiers."""
        return len(self.tiers) - 1 if self.ceiling is None else self._position(self.ceiling)

    def models(self) -> Iterator[str]:
        """The names of all models, from the cheapest tier on."""
        return (name for tier in self.tiers for name in tier.models)

    def _position(self, name: str) -> int:
        return next(place for place, tier in enumerate(self.tiers) if tier.name == name)


class RoutingDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for an alias: it is `auto`, or a model whose deployments get weights.

    Attributes:
        auto: tiers of models to choose from.
        weights: of a model's deployments by name, `provider/model`.
    """

    auto: AutoPolicy | None = None
    weights: Annotated[dict[str, Weight], msgspec.Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if (self.auto is None) == (self.weights is None):
            raise ValueError("`auto` or `weights` is needed, and not both")
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError("`weights`: one must be above 0")


def split_mode(name: str) -> tuple[str, str | None]:
    """An alias, and the word after it if it is one of `MODES`."""
    alias, _, mode = name.rpartition(":")
    return (alias, mode) if alias and mode in MODES else (name, None)
