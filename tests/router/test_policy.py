"""Routing decisions, which are values in and values out."""

from __future__ import annotations

import pytest

from sluice.backends.base import Endpoint
from sluice.router.catalog import Capability, Catalog, Deployment, Model, Tier
from sluice.router.policy import RoutingRefused, choose_model


def model(
    *weights: int,
    name: str = "m",
    capabilities: tuple[Capability, ...] = ("chat",),
    tiers: tuple[Tier, ...] = ("interactive",),
) -> Model:
    deployments = tuple(
        Deployment("p", f"d{number}", weight) for number, weight in enumerate(weights)
    )
    return Model(name, 100, frozenset(capabilities), frozenset(tiers), deployments)


CATALOG = Catalog(
    [
        model(1, name="chat"),
        model(1, name="all", capabilities=("chat", "completions", "embeddings"), tiers=("batch",)),
    ],
    created=5,
)


def test_a_model_is_chosen_by_its_name_alone() -> None:
    assert choose_model(CATALOG, "chat", Endpoint.CHAT, "interactive").name == "chat"


@pytest.mark.parametrize("name", ["", "Chat", "chat ", "nope", "ch\x00at"])
def test_an_unknown_model_is_not_found(name: str) -> None:
    with pytest.raises(RoutingRefused) as caught:
        choose_model(CATALOG, name, Endpoint.CHAT, "interactive")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS])
def test_a_model_serves_only_what_it_can(endpoint: Endpoint) -> None:
    with pytest.raises(RoutingRefused) as caught:
        choose_model(CATALOG, "chat", endpoint, "interactive")
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_model")
    assert choose_model(CATALOG, "all", endpoint, "batch").name == "all"


def test_a_model_is_open_to_its_tiers_only() -> None:
    with pytest.raises(RoutingRefused) as caught:
        choose_model(CATALOG, "all", Endpoint.CHAT, "interactive")
    assert (caught.value.param, caught.value.code) == ("x-tier", "unsupported_tier")
