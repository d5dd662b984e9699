"""Which deployments to try, and in which order. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Callable

from sluice.backends.base import Endpoint
from sluice.router.catalog import NEEDED, Catalog, Deployment, Model

#: Upstream calls that one request may cost.
ATTEMPT_BUDGET = 3


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


def order_attempts(model: Model, draw: Callable[[], float]) -> tuple[Deployment, ...]:
    """The deployments in the order in which to try them.

    The first is drawn by weight, the next by weight among the rest, and so on: traffic splits by
    weight, and what a failing deployment can't take splits by weight too. A deployment of weight
    0 takes no traffic. A model's only deployment gets a second chance.

    Args:
        model: with its deployments.
        draw: gives a number in [0, 1).
    """
    rest = [deployment for deployment in model.deployments if deployment.weight > 0]
    if len(rest) == 1:
        return (rest[0], rest[0])
    order: list[Deployment] = []
    while rest and len(order) < ATTEMPT_BUDGET:
        mark = draw() * sum(deployment.weight for deployment in rest)
        for position, deployment in enumerate(rest):
            mark -= deployment.weight
            if mark < 0 or position == len(rest) - 1:
                order.append(rest.pop(position))
                break
    return tuple(order)
