"""Routing decisions, which are values in and values out."""

from __future__ import annotations

import random
from collections import Counter
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.base import Endpoint
from sluice.router.catalog import Capability, Catalog, Deployment, Model, Tier
from sluice.router.policy import ATTEMPT_BUDGET, RoutingRefused, choose_model, order_attempts


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


def names(chosen: Model, draw: random.Random) -> list[str]:
    return [deployment.model for deployment in order_attempts(chosen, draw.random)]


def shares(chosen: Model, position: int, rounds: int = 20_000) -> dict[str, float]:
    draw = random.Random(11)
    counts = Counter(names(chosen, draw)[position] for _ in range(rounds))
    return {name: count / rounds for name, count in counts.items()}


def test_the_first_attempt_is_shared_by_weight() -> None:
    found = shares(model(70, 20, 10), 0)
    assert found == pytest.approx({"d0": 0.7, "d1": 0.2, "d2": 0.1}, abs=0.02)


def test_what_a_failing_deployment_leaves_is_shared_by_weight_too() -> None:
    draw = random.Random(12)
    seconds = Counter(
        order[1]
        for order in (names(model(100, 30, 10), draw) for _ in range(20_000))
        if order[0] == "d0"
    )
    assert seconds["d1"] / seconds.total() == pytest.approx(0.75, abs=0.02)


def test_equal_weights_share_equally() -> None:
    found = shares(model(*repeat(5, 10)), 0)
    assert found == pytest.approx({f"d{number}": 0.1 for number in range(10)}, abs=0.02)


def test_a_tiny_weight_still_gets_its_part() -> None:
    assert 0.005 < shares(model(99, 1), 0)["d1"] < 0.015


weights = st.lists(st.integers(min_value=0, max_value=10**18), max_size=8)
draws = st.lists(st.floats(min_value=0, max_value=1, exclude_max=True), min_size=5, max_size=5)


@given(weights=weights, numbers=draws)
def test_every_order_has_its_form(weights: list[int], numbers: list[float]) -> None:
    order = order_attempts(model(*weights), iter(numbers).__next__)
    usable = [weight for weight in weights if weight]
    assert all(deployment.weight for deployment in order)
    if len(usable) == 1:
        assert len(order) == 2
        assert order[0] == order[1]
    else:
        assert len(order) == len(set(order)) == min(len(usable), ATTEMPT_BUDGET)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_weight_0_takes_nothing_at_either_end(number: float) -> None:
    order = order_attempts(model(0, 1, 0, 1, 0), lambda: number)
    assert {deployment.model for deployment in order} == {"d1", "d3"}


def test_nothing_but_weight_0_is_no_attempt() -> None:
    assert order_attempts(model(0, 0), random.random) == ()


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
