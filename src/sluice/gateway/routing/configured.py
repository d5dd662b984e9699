"""The configuration's routing documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from pydantic import PlainValidator

from sluice.billing.prices import Price
from sluice.router.auto.documents import AutoPolicy, RoutingDocument, TierPolicy
from sluice.router.catalog import Catalog, Model

#: The alias that there is where the configuration names none.
AUTO = "auto"

#: The share of requests that its strong model gets.
STRONG_SHARE = 0.3


def _auto_policy(value: Any) -> AutoPolicy:
    """A policy of the file's, which has the form of the API's."""
    try:
        return msgspec.convert(value, AutoPolicy)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


#: A policy, as the configuration's fields have it.
AutoSettings = Annotated[AutoPolicy, PlainValidator(_auto_policy)]


def configured_documents(
    given: Mapping[str, AutoPolicy] | None, catalog: Catalog, prices: Mapping[str, Price]
) -> dict[str, RoutingDocument]:
    """The documents of a configuration, by alias.

    Args:
        given: its `routing`; None where it has none, for which there is a default.
        catalog: its models.
        prices: of models that have one.
    """
    if given is None:
        return _default(catalog, prices)
    return {alias: RoutingDocument(auto=policy) for alias, policy in given.items()}


def _default(catalog: Catalog, prices: Mapping[str, Price]) -> dict[str, RoutingDocument]:
    """`auto` over the cheapest and the dearest model that chat, if their prices differ: a price is
    all that is known of how good models are."""
    models = [model for model in catalog.models() if "chat" in model.capabilities]
    priced = [model for model in models if model.name in prices]
    if catalog.get(AUTO) is not None or len(priced) < 2:
        return {}

    def dear(model: Model) -> int:
        return prices[model.name].output

    cheapest, dearest = min(priced, key=dear), max(priced, key=dear)
    if dear(cheapest) == dear(dearest):
        return {}
    tiers = (
        TierPolicy(name="economy", models={cheapest.name: 1}),
        TierPolicy(name="quality", models={dearest.name: 1}, share=STRONG_SHARE),
    )
    return {AUTO: RoutingDocument(auto=AutoPolicy(tiers=tiers))}
