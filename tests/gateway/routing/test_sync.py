"""What a gateway follows of routing documents."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import uuid_utils.compat

from sluice.gateway.routing.store import changed_documents
from sluice.gateway.routing.sync import RoutingSync
from sluice.migrations import migrate
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.table import Key, RoutingTable


class Table(RoutingTable):
    """Keeps what it was given."""

    documents: dict[Key, RoutingDocument]

    def replace(self, documents: Any) -> None:
        self.documents = dict(documents)


async def put(pool: asyncpg.Pool, alias: str, document: str) -> UUID:
    made: UUID = await pool.fetchval(
        "INSERT INTO routing_documents (id, alias, version, document, revision)"
        " VALUES ($1, $2, 1, $3, 0) RETURNING id",
        uuid_utils.compat.uuid7(),
        alias,
        document,
    )
    return made


async def test_a_document_of_a_later_release_leaves_its_alias_as_it_is(database: str) -> None:
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
        first = await put(pool, "a", '{"weights": {"p/x": 1}}')
        table = Table()
        sync = RoutingSync(partial(changed_documents, pool), _nothing, table, Calibration())
        await sync.refresh()
        known = table.documents["a", None]
        later = '{"weights": {"p/x": 2}, "of_tomorrow": true}'
        await pool.execute("UPDATE routing_documents SET document = $2 WHERE id = $1", first, later)
        await put(pool, "b", '{"weights": {"p/y": 1}}')
        await sync.refresh()
        assert table.documents["a", None] == known
        assert ("b", None) in table.documents


async def _nothing() -> list[tuple[str, str, str, float]]:
    return []
