"""The catalogue keeps names and their order."""

from __future__ import annotations

from sluice.backends.base import Endpoint
from sluice.router.catalog import NEEDED, Catalog, Deployment, Model


def model(name: str) -> Model:
    return Model(name, 100, frozenset({"chat"}), frozenset({"batch"}), ())


def test_models_are_found_by_name_and_listed_in_order() -> None:
    models = [model("z"), model("a"), model("org/m")]
    catalog = Catalog(iter(models), created=7)
    assert catalog.models() == models
    assert catalog.get("org/m") is models[2]
    assert catalog.get("none") is None
    assert catalog.created == 7


def test_the_list_is_a_copy() -> None:
    catalog = Catalog([model("a")], created=0)
    catalog.models().clear()
    assert len(catalog.models()) == 1


def test_every_endpoint_needs_a_capability() -> None:
    assert set(NEEDED) == set(Endpoint)


def test_a_deployment_is_named_by_provider_and_model() -> None:
    assert Deployment("p", "org/m").name == "p/org/m"
