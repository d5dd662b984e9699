"""Keeps what scores requests as the database has the models, by asking for what changed, several
times a second. While Postgres is away the scorers stay as they were."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from sluice.gateway.database_poll import DatabasePoll
from sluice.router.auto.scorers import Scorers
from sluice.router.complexity.model import InvalidModel
from sluice.router.complexity.scorer import Scorer

POLL_SECONDS = 0.25

_log = structlog.get_logger("sluice.router")


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A model whose state changed.

    Attributes:
        file: of an active model; None: it is not active, or no more.
    """

    alias: str
    version: int
    revision: int
    file: bytes | None


class ScorerSync:
    """Gives each alias the scorer of its active model; the rule scores those without."""

    def __init__(
        self,
        changed: Callable[[int], Awaitable[Sequence[ModelChange]]],
        scorers: Scorers,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Args:
        changed: gives the models that changed after a revision, in the order of their revisions.
        scorers: to be kept.
        poll_seconds: between two looks.
        """
        self._changed = changed
        self._scorers = scorers
        self._learnt: dict[str, tuple[int, Scorer]] = {}
        self._revision = 0
        self._poll = DatabasePoll("router models", self.refresh, poll_seconds)

    async def start(self) -> None:
        """Load everything, then go on in the background.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        await self._poll.start()

    async def stop(self) -> None:
        """End the poll."""
        await self._poll.stop()

    async def refresh(self) -> None:
        """Look once. A model that this release can't read leaves its alias as it is.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        changes = await self._changed(self._revision)
        if not changes:
            return
        for change in changes:
            self._take(change)
            self._revision = max(self._revision, change.revision)
        self._scorers.replace({alias: scorer for alias, (_, scorer) in self._learnt.items()})

    def _take(self, change: ModelChange) -> None:
        alias, version = change.alias, change.version
        if change.file is None:
            if alias in self._learnt and self._learnt[alias][0] == version:
                del self._learnt[alias]
                _log.info("model out of use", alias=alias, version=version)
            return
        try:
            self._learnt[alias] = (version, Scorer.of_model(change.file))
        except InvalidModel as error:
            _log.error("model not used", alias=alias, version=version, reason=str(error))
            return
        _log.info("model in use", alias=alias, version=version)
