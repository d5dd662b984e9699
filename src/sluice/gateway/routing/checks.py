"""What a routing document must fit: the models that there are. Pure."""

from __future__ import annotations

from sluice.gateway.tenancy.refusals import Conflict
from sluice.router.auto.documents import AutoPolicy, RoutingDocument, split_mode
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Model


def check_document(alias: str, document: RoutingDocument, catalog: Catalog) -> None:
    """Raises:
    Conflict: it names what is not there, or stands for something that is.
    """
    model = catalog.get(alias)
    if document.auto is not None:
        _check_auto(alias, document.auto, model, catalog)
    elif model is None:
        raise Conflict(f"there is no model `{alias}` to weight the deployments of", "alias")
    elif document.weights is not None:
        _check_weights(model, document.weights)


def _check_auto(alias: str, policy: AutoPolicy, model: Model | None, catalog: Catalog) -> None:
    if model is not None:
        raise Conflict(f"`{alias}` is a model", "alias")
    if split_mode(alias)[1] is not None:
        raise Conflict("an alias must not end in one of its own words", "alias")
    for name in policy.models():
        if catalog.get(name) is None:
            raise Conflict(f"there is no model `{name}`", "auto.tiers")


def _check_weights(model: Model, weights: dict[str, int]) -> None:
    names = {each.name for each in model.deployments}
    if unknown := sorted(set(weights) - names):
        raise Conflict(f"`{model.name}` has no deployment `{unknown[0]}`", "weights")
    if missing := sorted(names - set(weights)):
        raise Conflict(f"the deployment `{missing[0]}` needs a weight", "weights")


def standing(alias: str, catalog: Catalog, table: RoutingTable) -> RoutingDocument | None:
    """What holds for an alias by the configuration: its document, or its model's weights."""
    configured = table.configured(alias)
    if configured is not None:
        return configured
    model = catalog.get(alias)
    if model is None or not any(each.weight for each in model.deployments):
        return None
    return RoutingDocument(weights={each.name: each.weight for each in model.deployments})
