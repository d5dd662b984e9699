"""Documents that this release can't read, as those of a later one: administrators see that they
are there, and can put another in their place."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import asyncpg
import httpx2
import pytest

from sluice.gateway.app import create_app
from sluice.gateway.auth import KeyRing, TokenRing
from sluice.gateway.routes.access import Access, by_token
from sluice.gateway.routes.admin import admin_router
from sluice.gateway.routes.admin.models import Configured
from sluice.gateway.routes.admin.routing import Routing
from sluice.gateway.routing.store import RoutingDocuments
from sluice.gateway.secrets import key_hash
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog, Deployment, Model, Timeouts
from tests.harness.gateway import ADMIN_KEY

PATH = "/admin/routing/split"
GOOD = {"auto": None, "weights": {"p/x": 1}}
LATER = '{"weights": {"p/x": 2}, "of_tomorrow": true}'


def catalog() -> Catalog:
    deployment = Deployment("p", "x", 1, Timeouts(1, 1, 1))
    model = Model("split", 4096, frozenset({"chat"}), frozenset({"interactive"}), (deployment,))
    return Catalog([model], created=0)


@pytest.fixture(scope="session")
def documents_database(new_database: Callable[[str], str]) -> str:
    """One for these tests, one after the other."""
    return new_database("unreadable")


@pytest.fixture
async def admin(documents_database: str) -> AsyncIterator[httpx2.AsyncClient]:
    """An administrator, after a document of this release's was followed by one of a later one's."""
    nothing: Any = None
    async with asyncpg.create_pool(documents_database, min_size=1, max_size=2) as pool:
        await pool.execute("TRUNCATE routing_documents CASCADE")
        documents = RoutingDocuments(pool)
        routing = Routing(documents, nothing, catalog(), RoutingTable({}))
        access = Access(KeyRing(), [by_token(TokenRing(key_hash(ADMIN_KEY)))])
        with warnings.catch_warnings():  # of how the handlers declare their parameters
            warnings.simplefilter("ignore", DeprecationWarning)
            router = admin_router(pool, access, Configured((), ()), nothing, routing)
            app = cast("Any", create_app([router]))
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        ) as client:
            assert (await client.put(PATH, json=GOOD)).status_code == 200
            await pool.execute("UPDATE routing_documents SET document = $1, version = 2", LATER)
            await pool.execute(
                "INSERT INTO routing_versions (routing_id, version, document, actor)"
                " SELECT id, 2, document, 'later' FROM routing_documents"
            )
            yield client


async def test_they_are_shown_as_unreadable(admin: httpx2.AsyncClient) -> None:
    shown = await admin.get(PATH)
    assert shown.status_code == 200
    assert shown.json()["document"] is None
    assert "of_tomorrow" in shown.json()["unreadable"]
    [listed] = (await admin.get("/admin/routing")).json()["data"]
    assert listed == shown.json()
    newest, oldest = (await admin.get(f"{PATH}/versions")).json()["data"]
    assert "of_tomorrow" in newest["unreadable"]
    assert oldest["document"] == GOOD
    assert "unreadable" not in oldest


async def test_another_takes_their_place(admin: httpx2.AsyncClient) -> None:
    tag = (await admin.get(PATH)).headers["etag"]
    put = await admin.put(PATH, json=GOOD, headers={"if-match": tag})
    assert (put.status_code, put.json()["version"]) == (200, 3)
    assert put.json()["document"] == GOOD


async def test_they_can_be_removed_once(admin: httpx2.AsyncClient) -> None:
    removed = await admin.delete(PATH)
    assert (removed.status_code, removed.json()["version"]) == (200, 3)
    assert "unreadable" not in removed.json()
    assert (await admin.delete(PATH)).status_code == 404
    [entry] = [
        each
        for each in (await admin.get("/admin/audit")).json()["data"]
        if each["action"] == "routing.delete"
    ]
    assert "of_tomorrow" in entry["before"]["unreadable"]


async def test_nothing_rolls_back_to_them(admin: httpx2.AsyncClient) -> None:
    rolled = await admin.post(f"{PATH}/rollback")
    assert (rolled.status_code, rolled.json()["document"]) == (200, GOOD)
    refused = await admin.post(f"{PATH}/rollback", json={"version": 2})
    assert refused.status_code == 409
    assert refused.json()["error"]["param"] == "version"
    assert "of_tomorrow" in refused.json()["error"]["message"]
