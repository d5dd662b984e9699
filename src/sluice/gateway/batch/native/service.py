"""The work of native batches in a worker process. Any number of processes share it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.batch.native.provider import NativeProvider
from sluice.gateway.batch.native.submitter import Submitter
from sluice.gateway.batch.native.watcher import Watcher

#: Batches at providers that one process sees to at a time.
WATCHED = 4

#: How often it is looked for new batches, and for batches at providers that are due, in seconds.
DECIDE_SECONDS = 0.5
WATCH_SECONDS = 2.0

_log = structlog.get_logger("sluice.native")


class NativeBatches:
    """Runs the submitter and the watcher."""

    def __init__(
        self, submitter: Submitter, watcher: Watcher, providers: Mapping[str, NativeProvider]
    ) -> None:
        self._submitter = submitter
        self._watcher = watcher
        self._providers = providers

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_again_and_again("submitter", self._decide, DECIDE_SECONDS))
                for _ in range(WATCHED):
                    group.create_task(
                        _again_and_again("watcher", self._watcher.look, WATCH_SECONDS)
                    )
        finally:
            await self._submitter.stop()
            for provider in self._providers.values():
                await provider.batches.close()

    async def _decide(self) -> bool:
        await self._submitter.decide_all()
        return False  # what was decided is not seen again; there is time until the next look


async def _again_and_again(name: str, look: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Look at once after work was found, and now and then where there was none."""
    away = False
    while True:
        found = False
        try:
            found = await look()
            away = False
        except DATABASE_ERRORS as error:
            if not away:
                _log.warning(f"{name} can't look", error=type(error).__name__)
            away = True
        except Exception:  # noqa: BLE001 - one batch that can't be handled must not end the others
            _log.exception(f"{name} failed")
        if not found:
            await asyncio.sleep(seconds)
