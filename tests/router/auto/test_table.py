"""Which document holds for whom, and what weights make of a model."""

from __future__ import annotations

from sluice.backends.base import Endpoint
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog
from sluice.router.plan import Fallbacks
from sluice.router.policy import Router
from tests.router.auto.samples import document, model

CONFIGURED, EVERYBODYS, TEAMS = (document(floor=name) for name in (None, "economy", "quality"))


def test_the_nearest_document_holds() -> None:
    table = RoutingTable({"auto": CONFIGURED})
    assert table.get("auto", "t") == CONFIGURED
    table.replace({("auto", None): EVERYBODYS})
    assert table.get("auto", "t") == EVERYBODYS
    table.replace({("auto", None): EVERYBODYS, ("auto", "t"): TEAMS})
    assert (table.get("auto", "t"), table.get("auto", "u")) == (TEAMS, EVERYBODYS)
    table.replace({})
    assert table.get("auto", "t") == CONFIGURED
    assert table.get("other", "t") is None


def test_aliases_are_there_for_their_teams() -> None:
    table = RoutingTable({"auto": CONFIGURED})
    table.replace({("own", "t"): TEAMS, ("m", None): RoutingDocument(weights={"p/m-0": 1})})
    assert list(table.autos("t")) == ["auto", "own"]
    assert list(table.autos("u")) == ["auto"]
    assert list(table.autos(None)) == ["auto"]


def weights(of: dict[str, int]) -> RoutingDocument:
    return RoutingDocument(weights=of)


def test_weights_reach_routes_and_their_fallbacks_at_once() -> None:
    table = RoutingTable()
    catalog = Catalog([model("m", weights=(100, 100)), model("n", weights=(1, 1))], created=5)
    router = Router(catalog, {"m": Fallbacks(("n",))}, table)

    def seen(team: str) -> list[list[int]]:
        route = router.route("m", Endpoint.CHAT, "interactive", team=team)
        return [[each.weight for each in one.deployments] for one in route.models()]

    assert seen("t") == [[100, 100], [1, 1]]
    table.replace({("m", None): weights({"p/m-0": 90, "p/m-1": 10})})
    assert seen("t") == [[90, 10], [1, 1]]
    table.replace({("m", "t"): weights({"p/m-0": 5}), ("n", None): weights({"p/n-1": 3})})
    assert (seen("t"), seen("u")) == ([[5, 0], [0, 3]], [[100, 100], [0, 3]])


def test_weights_of_deployments_that_are_gone_are_not_followed() -> None:
    table = RoutingTable()
    table.replace({("m", None): weights({"p/gone": 1})})
    assert table.weighted(model("m"), None) == model("m")
