"""What `sluice billing` and `sluice migrate` do."""

from __future__ import annotations

import asyncio
import signal
import socket

from sluice.billing.ledger import Ledger, LedgerConsumer
from sluice.gateway.connections import connect_redis, open_database, reaching_database
from sluice.gateway.environment import Environment, needed
from sluice.migrations import migrate


async def billing() -> None:
    """Consume the usage stream until told to stop."""
    environment = Environment.read()
    database_url = needed(environment.database_url, "SLUICE_DATABASE_URL")
    redis = connect_redis(needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await open_database(database_url)
    consumer = LedgerConsumer(redis, Ledger(pool), name=socket.gethostname())
    running = asyncio.create_task(consumer.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.gather(running, return_exceptions=True)
    await redis.aclose()
    pool.terminate()
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


async def migrate_database() -> list[str]:
    """Apply what is new of the schema; give the versions applied."""
    url = needed(Environment.read().database_url, "SLUICE_DATABASE_URL")
    with reaching_database():
        return await migrate(url)
