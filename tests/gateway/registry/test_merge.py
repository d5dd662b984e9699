"""The registry's models beside the configuration's."""

from __future__ import annotations

from sluice.billing.prices import Price
from sluice.gateway.registry.merge import merge
from sluice.gateway.registry.prices import PriceBook
from sluice.router.catalog import Deployment, Model, Timeouts
from tests.gateway.registry.samples import registered

POOLS = {"pool": Timeouts(total=1.0), "green": Timeouts()}
CONFIGURED = Model(
    "own", 100, frozenset({"chat"}), frozenset({"interactive"}), (Deployment("p", "m"),)
)


def test_a_version_in_prod_is_a_model() -> None:
    version = registered(
        stage="prod",
        sampling={"temperature": 0.2},
        price={"input_per_mtok": "2"},
        tiers=["batch"],
        default_max_tokens=100,
    )
    merged = merge([CONFIGURED], [version], POOLS)
    assert merged.models[0] == CONFIGURED
    model = merged.models[1]
    assert (model.name, model.context_length, model.default_max_tokens) == ("llama", 8192, 100)
    assert model.tiers == {"batch"}
    assert model.deployments == (
        Deployment("pool", "llama", timeouts=POOLS["pool"], defaults=(("temperature", 0.2),)),
    )
    assert merged.prices["llama"].input == 2_000_000_000
    assert merged.problems == ()


def test_a_version_in_no_stage_serves_nobody() -> None:
    assert merge([], [registered()], POOLS).models == ()


def test_a_canary_is_part_of_its_model() -> None:
    prod = registered(1, stage="prod")
    canary = registered(2, version="2", pool="green", stage="canary", share=12.5)
    [model] = merge([], [canary, prod], POOLS).models
    assert model.canary is not None
    assert model.canary.share == 12.5
    assert model.canary.model.deployments[0].name == "green/llama"
    assert merge([], [prod], POOLS).models[0].canary is None


def test_a_shadow_is_part_of_its_model() -> None:
    prod = registered(1, stage="prod")
    shadow = registered(2, version="2", pool="green", stage="shadow", share=1.0)
    [model] = merge([], [shadow, prod], POOLS).models
    assert model.shadow is not None
    assert model.canary is None
    assert model.shadow.model.deployments[0].name == "green/llama"


def test_a_canary_without_a_share_is_not_asked() -> None:
    prod = registered(1, stage="prod")
    canary = registered(2, version="2", pool="green", stage="canary", share=0.0)
    assert merge([], [prod, canary], POOLS).models[0].canary is None


def test_the_configuration_wins_and_says_so() -> None:
    merged = merge([CONFIGURED], [registered(name="own", stage="prod")], POOLS)
    assert merged.models == (CONFIGURED,)
    assert merged.prices == {}
    assert merged.problems == ("`own` `1` gives way to the configuration's model of that name",)


def test_an_unknown_pool_is_said() -> None:
    merged = merge([], [registered(pool="nowhere", stage="prod")], POOLS)
    assert merged.models == ()
    assert merged.problems == (
        "`llama` `1` is in the pool `nowhere`, which the configuration lacks",
    )


def test_a_canary_alone_does_not_serve() -> None:
    prod = registered(1, pool="nowhere", stage="prod")
    canary = registered(2, version="2", pool="green", stage="canary", share=50.0)
    merged = merge([], [prod, canary], POOLS)
    assert merged.models == ()
    assert "`llama` has no version in `prod` that can serve here" in merged.problems


def test_a_model_that_is_gone_keeps_its_last_price() -> None:
    prices = PriceBook({"own": Price(1)})
    prices.update({"llama": Price(2)})
    prices.update({"mistral": Price(3)})
    assert dict(prices) == {"own": Price(1), "llama": Price(2), "mistral": Price(3)}
