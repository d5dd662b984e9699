"""Fixtures of the batch tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import httpx2
import pytest

from sluice.gateway.batch.storage import Storage
from sluice.migrations import migrate
from tests.gateway.batch.doors_site import DoorsSite, doors_site
from tests.gateway.batch.jobs_site import JobsSite
from tests.gateway.batch.native_site import NativeSite
from tests.harness.provider_batches import AnthropicProvider, OpenAIProvider


@pytest.fixture
async def jobs_site(database: str, tmp_path: Path) -> AsyncIterator[JobsSite]:
    """A database of its own, with the schema."""
    await migrate(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=8) as pool:
        yield JobsSite(pool, Storage(tmp_path / "files"))


@pytest.fixture(scope="session")
def batch_database(new_database: Callable[[str], str]) -> str:
    """The URL of a database that tests share, one after the other."""
    return new_database("batches")


@pytest.fixture
async def emptied_site(batch_database: str, tmp_path: Path) -> AsyncIterator[JobsSite]:
    """As `jobs_site`, in the shared database, which is emptied first."""
    async with asyncpg.create_pool(batch_database, min_size=1, max_size=8) as pool:
        await pool.execute("TRUNCATE teams, usage_records, usage_daily CASCADE")
        yield JobsSite(pool, Storage(tmp_path / "files"))


@pytest.fixture(scope="session")
def doors_database(new_database: Callable[[str], str]) -> str:
    """One database for all tests of the front doors: each has teams of its own there."""
    return new_database("doors")


@pytest.fixture
async def native_site(emptied_site: JobsSite) -> AsyncIterator[NativeSite]:
    """Native batches, over both providers."""
    openai, anthropic = OpenAIProvider(), AnthropicProvider()
    for provider in (openai, anthropic):
        await provider.server.start_server()
    made = NativeSite(emptied_site.pool, emptied_site, openai, anthropic)
    yield made
    for each in made.providers.values():
        await each.batches.close()
    for provider in (openai, anthropic):
        await provider.server.close()


@pytest.fixture
async def site(doors_database: str, tmp_path: Path) -> AsyncIterator[DoorsSite]:
    """The doors that batches come in by."""
    async with doors_site(doors_database, tmp_path) as site:
        yield site


@pytest.fixture
async def caller(site: DoorsSite) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with a key."""
    async with site.bare(await site.key()) as client:
        yield client
