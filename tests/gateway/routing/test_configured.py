"""What the configuration says of aliases, and what there is where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.billing.prices import Price
from sluice.gateway.config_file import load_config
from sluice.gateway.routing.checks import check_document, standing
from sluice.gateway.routing.configured import configured_documents
from sluice.gateway.startup_errors import ConfigError
from sluice.gateway.tenancy.refusals import Conflict
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog
from tests.router.auto.samples import document, model, policy

PRICES = {name: Price(output=cost) for name, cost in (("a", 5), ("b", 1), ("c", 9), ("d", 9))}


def models(names: str) -> Catalog:
    return Catalog([model(name) for name in names.split()], created=5)


def test_without_a_word_of_it_auto_is_the_cheapest_and_the_dearest_model() -> None:
    made = configured_documents(None, models("a b c free"), PRICES)
    assert made["auto"].auto is not None
    assert [dict(tier.models) for tier in made["auto"].auto.tiers] == [{"b": 1}, {"c": 1}]


@pytest.mark.parametrize("names", ["a", "c d", "a free", "auto a b"])
def test_where_there_is_nothing_to_choose_there_is_no_auto(names: str) -> None:
    assert configured_documents(None, models(names), PRICES) == {}


def test_what_is_given_is_all_that_there_is() -> None:
    given = policy()
    assert configured_documents({"mine": given}, models("a b"), PRICES) == {
        "mine": RoutingDocument(auto=given)
    }
    assert configured_documents({}, models("a b"), PRICES) == {}


FILE = """
providers: {sim: {kind: simulator}}
models:
  - {name: a, context_length: 10, capabilities: [chat], deployments: [{provider: sim, model: m}]}
  - {name: b, context_length: 10, capabilities: [chat], deployments: [{provider: sim, model: m}]}
routing:
  %s:
    tiers: [{name: low, models: {a: 1}}, {name: high, models: {%s: 1}, share: %s}]
"""


def test_a_file_with_tiers(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text(FILE % ("auto", "b", "0.25"))
    routing = load_config(file).routing
    assert routing is not None
    assert routing["auto"].tiers[1].share == 0.25


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (("auto", "b", "2"), r":7: routing\.auto: Expected `float` <= 1\.0 - at `\$\.tiers\[1\]"),
        (("auto", "nope", "0.5"), r":7: routing\.auto: there is no model `nope`"),
        (("a", "b", "0.5"), r":7: routing\.a: is a model's name"),
        (("x:quality", "b", "0.5"), "must not end in one of its words"),
    ],
)
def test_faults_are_named_with_their_lines(
    tmp_path: Path, parts: tuple[str, ...], fault: str
) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text(FILE % parts)
    with pytest.raises(ConfigError, match=fault):
        load_config(file)


def test_what_holds_without_a_document() -> None:
    table = RoutingTable({"auto": document()})
    assert standing("auto", models("a"), table) == document()
    assert standing("a", models("a"), table) == RoutingDocument(weights={"p/a-0": 100})
    assert standing("nobody", models("a"), table) is None


def test_documents_name_what_is_there() -> None:
    with pytest.raises(Conflict, match="no model `small`"):
        check_document("auto", document(), models("a"))
    check_document("auto", document(), models("small large"))
