"""Which model serves a request, and which others may. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.backends.base import Endpoint
from sluice.router.catalog import NEEDED, Catalog, Model
from sluice.router.plan import Fallbacks, Route, expand


class RoutingRefused(Exception):
    """The catalogue has no deployment for the request.

    Attributes:
        param: the parameter that rules it out.
        code: machine-readable reason.
    """

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def choose_model(catalog: Catalog, name: str, endpoint: Endpoint, tier: str) -> Model:
    """The model that serves a request.

    Raises:
        RoutingRefused: unknown, not made for the endpoint, or not open to the tier.
    """
    model = catalog.get(name)
    if model is None:
        raise RoutingRefused(f"The model `{name}` does not exist", "model", "model_not_found")
    if NEEDED[endpoint] not in model.capabilities:
        raise RoutingRefused(
            f"The model `{name}` has no {NEEDED[endpoint]}", "model", "unsupported_model"
        )
    if tier not in model.tiers:
        raise RoutingRefused(
            f"The model `{name}` is not open to the {tier} tier", "x-tier", "unsupported_tier"
        )
    return model


class Router:
    """Turns a model's name into the models that a request may reach."""

    def __init__(self, catalog: Catalog, fallbacks: Mapping[str, Fallbacks]) -> None:
        """Args:
        catalog: the models.
        fallbacks: by the name of the model that has them.
        """
        self._catalog = catalog
        self._fallbacks = fallbacks
        self._routes: dict[tuple[str, Endpoint, str], Route] = {}

    def route(self, name: str, endpoint: Endpoint, tier: str) -> Route:
        """The model of a name, with its fallbacks.

        Raises:
            RoutingRefused: see `choose_model`.
        """
        known = self._routes.get((name, endpoint, tier))
        if known is None:  # as many as the catalogue has models, endpoints and tiers
            known = self._routes[(name, endpoint, tier)] = self._expand(name, endpoint, tier)
        return known

    def _expand(self, name: str, endpoint: Endpoint, tier: str) -> Route:
        model = choose_model(self._catalog, name, endpoint, tier)

        def fits(other: Model) -> bool:
            return NEEDED[endpoint] in other.capabilities and tier in other.tiers

        return expand(model, self._catalog.get, self._fallbacks, fits)
