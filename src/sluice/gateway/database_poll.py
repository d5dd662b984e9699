"""A poll of the database: what it holds is followed, off the path, while it can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sluice.billing.ledger import DATABASE_ERRORS

#: How long one look may take, in seconds.
LOOK_SECONDS = 5.0

_log = structlog.get_logger("sluice.poll")


class DatabasePoll:
    """Looks again and again; says once when it can't."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Awaitable[None]],
        seconds: float,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        name: what is followed.
        look: takes over what has changed.
        seconds: between two looks.
        after: is called after each look, whether or not it could be made.
        """
        self._name = name
        self._look = look
        self._seconds = seconds
        self._after = after
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, then go on in the background.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        await self._look()
        self._task = asyncio.create_task(self._run(), name=f"{self._name}-poll")

    async def stop(self) -> None:
        """End the poll."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        away = False
        while True:
            await asyncio.sleep(self._seconds)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look()
                away = False
            except DATABASE_ERRORS as error:
                if not away:
                    _log.warning(f"{self._name} can't be refreshed", error=type(error).__name__)
                away = True
            self._after()
