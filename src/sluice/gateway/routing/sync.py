"""Keeps a gateway's routing table as the database has it, by asking for what changed, several
times a second. While Postgres is away the table stays as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from sluice.gateway.database_poll import DatabasePoll
from sluice.gateway.routing.records import RoutingRecord
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.table import Key, RoutingTable

POLL_SECONDS = 0.25

_log = structlog.get_logger("sluice.routing")


class RoutingSync:
    """Changes the table when the documents do."""

    def __init__(
        self,
        changed: Callable[[int], Awaitable[Sequence[RoutingRecord]]],
        scores: Callable[[], Awaitable[Sequence[tuple[str, str, str, float]]]],
        table: RoutingTable,
        calibration: Calibration,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Args:
        changed: gives the documents that changed after a revision.
        scores: gives the scores of the last requests: alias, team, scorer and score.
        table: is changed.
        calibration: begins with the scores.
        poll_seconds: between two looks.
        """
        self._changed = changed
        self._scores = scores
        self._table = table
        self._calibration = calibration
        self._documents: dict[Key, RoutingDocument] = {}
        self._revision = 0
        self._poll = DatabasePoll("routing", self.refresh, poll_seconds)

    async def start(self) -> None:
        """Load everything, then go on in the background.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        for alias, team, scorer, score in await self._scores():
            self._calibration.window(alias, team, scorer).seed((score,))
        await self._poll.start()

    async def stop(self) -> None:
        """End the poll."""
        await self._poll.stop()

    async def refresh(self) -> None:
        """Look once. A document that this release can't read leaves its alias as it is: a gateway
        goes on beside those of a later release.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        changes = await self._changed(self._revision)
        if not changes:
            return
        for each in changes:
            self._revision = max(self._revision, each.revision)
            if each.unreadable is not None:
                _log.error("routing document not used", alias=each.alias, reason=each.unreadable)
                continue
            key = (each.alias, None if each.team_id is None else str(each.team_id))
            if each.document is None:
                self._documents.pop(key, None)
            else:
                self._documents[key] = each.document
        self._table.replace(self._documents)
        _log.info("routing changed", documents=len(self._documents), revision=self._revision)
