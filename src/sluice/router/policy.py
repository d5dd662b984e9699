"""Which model serves a request, and which others may. Pure: values in, values out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.backends.base import Endpoint
from sluice.router.auto.table import RoutingTable
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


def conversation_of(session: bytes | None, request: str) -> str:
    """What stands for a request's conversation where versions of a model are tried: the session
    that its client names, else the request alone, by its id."""
    return session.decode("latin-1") if session else request


def takes_part(model: str, who: str, share: float) -> bool:
    """Whether somebody belongs to the part that tries another version of a model: at every gateway
    alike, and still so when the share grows.

    Args:
        model: its name, so that not the same ones try the versions of all models.
        who: what stands for a conversation, or for a request.
        share: in percent.
    """
    digest = hashlib.blake2b(f"{model}\0{who}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share / 100 * 2**64


@dataclass(frozen=True, slots=True)
class _Routes:
    """A model's route, and its canary's if it has one that fits."""

    usual: Route
    canary: Route | None
    share: float = 0.0


class Router:
    """Turns a model's name into the models that a request may reach."""

    def __init__(
        self,
        catalog: Catalog,
        fallbacks: Mapping[str, Fallbacks],
        table: RoutingTable | None = None,
    ) -> None:
        """Args:
        catalog: the models.
        fallbacks: by the name of the model that has them.
        table: the weights of deployments; where it isn't given they are as the models have them.
        """
        self._catalog = catalog
        self._fallbacks = fallbacks
        self._table = table or RoutingTable()
        self._routes: dict[tuple[str, Endpoint, str, str | None], _Routes] = {}
        self._generation = (catalog.generation, self._table.generation)

    def route(
        self, name: str, endpoint: Endpoint, tier: str, conversation: str = "", team: str = ""
    ) -> Route:
        """The model of a name, with its fallbacks.

        Args:
            name: that the request names.
            endpoint: that it came to.
            tier: its tier.
            conversation: what stands for the conversation that it belongs to.
            team: the id of the caller's.

        Raises:
            RoutingRefused: see `choose_model`.
        """
        generation = (self._catalog.generation, self._table.generation)
        if self._generation != generation:
            self._routes, self._generation = {}, generation
        of = self._table.distinct(team)
        known = self._routes.get((name, endpoint, tier, of))
        if known is None:  # as many as there are models, endpoints, tiers and teams with weights
            known = self._routes[(name, endpoint, tier, of)] = self._expand(
                name, endpoint, tier, of
            )
        if known.canary is not None and takes_part(name, conversation, known.share):
            return known.canary
        return known.usual

    def _expand(self, name: str, endpoint: Endpoint, tier: str, team: str | None) -> _Routes:
        table = self._table
        model = table.weighted(choose_model(self._catalog, name, endpoint, tier), team)

        def find(name: str) -> Model | None:
            found = self._catalog.get(name)
            return None if found is None else table.weighted(found, team)

        def fits(other: Model) -> bool:
            return NEEDED[endpoint] in other.capabilities and tier in other.tiers

        usual = expand(model, find, self._fallbacks, fits)
        canary = model.canary
        if canary is None or not fits(canary.model):
            return _Routes(usual, None)
        # Where the canary fails, the version that is proven answers.
        trying = replace(usual, model=canary.model, general=(model, *usual.general))
        return _Routes(usual, trying, canary.share)
