"""The finisher: outcomes of items on their way into Postgres, many in one transaction.

While one transaction is under way, what ends meanwhile gathers for the next one. While Postgres is
away nothing is lost but time: the group is written again until it is there. An item's slot is not
free before, so that no more gathers than was running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.batch.items import Items, Outcome, Place, Result

#: Most outcomes of one transaction, and about how many characters of results: Postgres takes no
#: array of a gigabyte.
GROUP = 500
GROUP_CHARACTERS = 32 * 1024 * 1024

#: Between attempts while Postgres is away, in seconds.
RETRY_SECONDS = 0.25

_log = structlog.get_logger("sluice.batch")


def fitting(outcomes: Sequence[Outcome]) -> int:
    """How many of some outcomes, from the first one on, fit into one transaction; at least one."""
    size = 0
    for number, outcome in enumerate(outcomes):
        size += len(outcome.text) if isinstance(outcome, Result) else 0
        if number and size > GROUP_CHARACTERS:
            return number
    return len(outcomes)


class Finisher:
    """Writes outcomes; see the module."""

    def __init__(self, items: Items, observe: Callable[[Outcome, bool], None]) -> None:
        """Args:
        observe: is told of each outcome that was written, and whether it counted.
        """
        self._items = items
        self._observe = observe
        self._gathering: list[tuple[Outcome, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def put(self, outcome: Outcome) -> None:
        """Write an outcome down; returns when it is.

        Raises:
            Exception: a fault of ours kept it from being written.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gathering.append((outcome, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="batch-finisher")
        await asyncio.shield(written)

    async def _write(self) -> None:
        try:
            while self._gathering:
                count = fitting([outcome for outcome, _ in self._gathering[:GROUP]])
                group, self._gathering = self._gathering[:count], self._gathering[count:]
                try:
                    counted = await self._settled([outcome for outcome, _ in group])
                except Exception as error:  # noqa: BLE001 - told to those who wait for it
                    for _, written in group:
                        if not written.done():
                            written.set_exception(error)
                    continue
                for outcome, written in group:
                    self._observe(outcome, outcome.place in counted)
                    if not written.done():
                        written.set_result(None)
        finally:
            self._writing = None

    async def _settled(self, outcomes: list[Outcome]) -> set[Place]:
        away = False
        while True:
            try:
                return await self._items.settle(outcomes)
            except (TimeoutError, *DATABASE_ERRORS) as error:
                if not away:
                    _log.warning("batch results wait", error=type(error).__name__)
                away = True
            await asyncio.sleep(RETRY_SECONDS)
