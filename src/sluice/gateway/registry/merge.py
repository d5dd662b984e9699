"""The registry's models beside the configuration's. Pure.

The configuration wins: it is what an operator of the gateway has in the hand, and a mistake in the
registry must not take a model of it away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sluice.billing.prices import Price
from sluice.gateway.registry.versions import ModelVersion
from sluice.router.catalog import Deployment, Model, Timeouts, Trial


@dataclass(frozen=True, slots=True)
class Merged:
    """A gateway's models.

    Attributes:
        models: the configuration's, then the registry's by name.
        prices: of the registry's; 0 where they are free.
        problems: why versions in a stage don't serve here, for operators.
    """

    models: tuple[Model, ...]
    prices: Mapping[str, Price]
    problems: tuple[str, ...]


def merge(
    configured: Collection[Model],
    versions: Iterable[ModelVersion],
    pools: Mapping[str, Timeouts],
) -> Merged:
    """Put both together.

    Args:
        configured: the configuration's models.
        versions: the registry's, in stages or not.
        pools: the configuration's pools of vLLM replicas, with the limits on calls to them.
    """
    taken = {model.name for model in configured}
    problems: list[str] = []
    usable: dict[tuple[str, str], ModelVersion] = {}
    for each in versions:
        if each.stage is None:
            continue
        what = f"`{each.name}` `{each.version}`"
        if each.name in taken:
            problems.append(f"{what} gives way to the configuration's model of that name")
        elif each.pool not in pools:
            problems.append(f"{what} is in the pool `{each.pool}`, which the configuration lacks")
        else:
            usable[each.name, each.stage] = each
    models, prices = list(configured), {}
    for name in sorted({name for name, _ in usable}):
        prod = usable.get((name, "prod"))
        if prod is None:
            problems.append(f"`{name}` has no version in `prod` that can serve here")
            continue
        canary, shadow = (
            _trial(usable.get((name, stage)), pools) for stage in ("canary", "shadow")
        )
        models.append(replace(_model(prod, pools), canary=canary, shadow=shadow))
        prices[name] = Price() if prod.price is None else prod.price.price()
    return Merged(tuple(models), prices, tuple(sorted(problems)))


def _trial(version: ModelVersion | None, pools: Mapping[str, Timeouts]) -> Trial | None:
    if version is None or not version.share:
        return None
    return Trial(_model(version, pools), version.share)


def _model(version: ModelVersion, pools: Mapping[str, Timeouts]) -> Model:
    deployment = Deployment(
        provider=version.pool,
        model=version.name,
        timeouts=pools[version.pool],
        defaults=version.sampling.pairs(),
    )
    return Model(
        name=version.name,
        context_length=version.context_length,
        capabilities=frozenset(version.capabilities),
        tiers=frozenset(version.tiers),
        deployments=(deployment,),
        default_max_tokens=version.default_max_tokens,
        owned_by="vllm",
    )
