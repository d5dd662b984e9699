"""Transactions that change tenancy: one at a time, over all processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

# As text: the classes take parameters for type checkers only.
Connection: TypeAlias = "asyncpg.Connection[Any] | PoolConnectionProxy[Any]"

#: The lock of the schema's `stamp_revision`, which every change takes in any case.
_LOCK = 7363621


@asynccontextmanager
async def change(pool: asyncpg.Pool) -> AsyncIterator[Connection]:
    """A transaction for a change, committed at the end.

    The lock comes first, and not only with the first row that is written: what is read inside is
    what is there until the commit, so that checks hold and merges lose nothing; ids that are made
    inside are in the order of the commits; and no two changes wait for each other in a circle.
    """
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        yield connection
