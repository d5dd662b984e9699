"""Routing decisions, which are values in and values out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.backends.base import Endpoint
from sluice.router.catalog import Capability, Catalog, Deployment, Model, Tier, Trial
from sluice.router.policy import Router, RoutingRefused, choose_model, takes_part


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


def test_a_share_of_the_conversations_tries_the_canary() -> None:
    tried = [takes_part("m", f"conversation-{number}", 10.0) for number in range(10_000)]
    assert 900 < sum(tried) < 1_100
    assert not any(takes_part("m", str(number), 0.0) for number in range(100))
    assert all(takes_part("m", str(number), 100.0) for number in range(100))


def test_a_conversation_stays_with_the_canary_when_the_share_grows() -> None:
    names = [f"conversation-{number}" for number in range(1_000)]
    few = {name for name in names if takes_part("m", name, 5.0)}
    many = {name for name in names if takes_part("m", name, 20.0)}
    assert few < many
    assert few != {name for name in names if takes_part("other", name, 5.0)}


def test_the_canary_is_asked_first_and_the_proven_version_after_it() -> None:
    prod, canary = model(1), replace(model(1), context_length=200)
    catalog = Catalog([replace(prod, canary=Trial(canary, 100.0))], created=5)
    route = Router(catalog, {}).route("m", Endpoint.CHAT, "interactive", "c")
    assert route.model == canary
    assert [each.context_length for each in route.general] == [100]


def test_a_canary_that_cannot_serve_the_request_is_passed_over() -> None:
    canary = model(1, capabilities=("embeddings",))
    catalog = Catalog([replace(model(1), canary=Trial(canary, 100.0))], created=5)
    route = Router(catalog, {}).route("m", Endpoint.CHAT, "interactive", "c")
    assert route.model.canary is not None
    assert route.general == ()


def test_routes_follow_a_catalogue_that_changes() -> None:
    catalog = Catalog([model(1)], created=5)
    router = Router(catalog, {})
    assert router.route("m", Endpoint.CHAT, "interactive").model == model(1)
    catalog.replace([model(2, name="other")])
    with pytest.raises(RoutingRefused):
        router.route("m", Endpoint.CHAT, "interactive")
    assert router.route("other", Endpoint.CHAT, "interactive").model.name == "other"
    assert catalog.deployments() == {"p/d0"}
