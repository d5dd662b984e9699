"""What a change of stage means for the other versions of a model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from sluice.backends.replicas import Stage
from sluice.gateway.registry.versions import ModelVersion
from sluice.gateway.tenancy.refusals import Conflict


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stage that a version is to be in.

    Attributes:
        share: of a canary, in percent of the conversations; of a shadow, of the requests. 0 tries
            it with none.
    """

    stage: Stage = "prod"
    share: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A version's new stage."""

    version: ModelVersion
    stage: Stage | None
    share: float | None = None


def promote(version: ModelVersion, to: Promotion, staged: Sequence[ModelVersion]) -> list[Move]:
    """The moves that bring a version into a stage, in this order.

    Who is in the stage leaves it, so that at no moment there are two.

    Args:
        version: the version.
        to: where to.
        staged: all versions of all models that are in a stage.

    Raises:
        Conflict: that can't be.
    """
    if (to.share is None) != (to.stage == "prod"):
        raise Conflict("a `canary` and a `shadow` need a `share`; `prod` has none", "share")
    others = [each for each in staged if each.id != version.id]
    same = [each for each in others if each.name == version.name]
    if to.stage != "prod" and not any(each.stage == "prod" for each in same):
        raise Conflict(f"a {to.stage} needs another version in `prod` beside it", "stage")
    leaving = [each for each in same if each.stage == to.stage]
    for other in others:
        if other.pool == version.pool and other not in leaving:
            raise Conflict(
                f"the pool `{version.pool}` is that of `{other.name}` `{other.version}`, which"
                f" is in `{other.stage}`; a pool's replicas are all of one version",
                "pool",
            )
    if (version.stage, version.share) == (to.stage, to.share):
        return []
    return [*(Move(each, None) for each in leaving), Move(version, to.stage, to.share)]


def retire(version: ModelVersion, staged: Sequence[ModelVersion]) -> list[Move]:
    """The moves that take a version out of its stage.

    Raises:
        Conflict: it is in `prod` while others are tried beside it.
    """
    if version.stage is None:
        return []
    tried = [each for each in staged if each.name == version.name and each.id != version.id]
    if version.stage == "prod" and tried:
        raise Conflict("retire the versions that are tried beside it first", "stage")
    return [Move(version, None)]
