"""The usage stream's writing end: one connection, one command on its way at a time.

The general client borrows a connection, wraps each step in timeouts of its own and returns it;
here, on every request's path, one connection stays out and one timeout covers the round trip.
"""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.billing.events import FIELD, STREAM


class StreamAway(Exception):
    """The usage stream did not take a group; it may or may not have it."""


class UsageStream:
    """Appends groups of events to the stream."""

    def __init__(self, redis: Redis, timeout: float) -> None:
        """Args:
        redis: whose pool makes the connection; it must have no socket timeout.
        timeout: seconds for connecting and the round trip together.
        """
        self._connection = redis.connection_pool.make_connection()
        self._timeout = timeout

    async def append(self, group: bytes) -> None:
        """Append a group; on return the stream has accepted it.

        Raises:
            StreamAway: it can't be told that it has. The connection is dropped, so that a late
                answer is not taken for the next one's.
        """
        connection = self._connection
        command = connection.pack_command("XADD", STREAM, "*", FIELD, group)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.send_packed_command(command, check_health=False)
                await connection.read_response()
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise StreamAway(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Drop the connection; the next `append` makes a new one."""
        await self._connection.disconnect(nowait=True)
