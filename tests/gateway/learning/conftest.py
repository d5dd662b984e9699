"""One migrated database for the tests of this package; what they write is gone before the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

_WRITTEN = (
    "route_labels, comparison_spend, router_models, router_health, route_decisions, routing_daily,"
    " usage_records, usage_daily"
)


@pytest.fixture(scope="session")
def learning_database(new_database: Callable[[str], str]) -> str:
    """Its URL."""
    return new_database("learning")


@pytest.fixture
async def pool(learning_database: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections to it."""
    async with asyncpg.create_pool(learning_database, min_size=1, max_size=4) as connections:
        await connections.execute(f"TRUNCATE {_WRITTEN}")
        yield connections
