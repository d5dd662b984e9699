"""A migrated database, and a Valkey whose stream no one else reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from redis.asyncio import Redis

from sluice.gateway.embedded.valkey import EmbeddedValkey
from sluice.migrations import migrate
from tests.billing.samples import client
from tests.servers import RunningServer, running


@pytest.fixture(scope="package")
def own_valkey() -> Iterator[RunningServer]:
    """One Valkey for the tests of this package; emptied before each."""
    with running(EmbeddedValkey) as server:
        yield server


@pytest.fixture
async def redis(own_valkey: RunningServer) -> AsyncIterator[Redis]:
    """A client of it."""
    async with client(own_valkey.url) as connection:
        await connection.flushall()
        yield connection


@pytest.fixture
async def pool(database: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections to a new, migrated database."""
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=4) as connections:
        yield connections
