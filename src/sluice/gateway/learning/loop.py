"""The loop: it looks for re-asks and drift, makes candidates when they are due, and promotes what
proved better. Any number of processes may run it; who has the lock works, the others wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import asyncpg
import msgspec
import structlog
import uuid_utils.compat

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.learning.drift import (
    ENOUGH,
    Outcomes,
    outcomes_of,
    shares_of,
    stability_index,
    sure_drop,
)
from sluice.gateway.learning.examples import Labelled, asks_again
from sluice.gateway.learning.health import AliasHealth, HealthRecords
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.models import RouterModel, RouterModels
from sluice.gateway.learning.retraining import Candidate, Present, make_candidate
from sluice.gateway.learning.settings import RetrainingSettings
from sluice.gateway.learning.traffic import Traffic
from sluice.gateway.tenancy.audit import By
from sluice.router.complexity.model import InvalidModel
from sluice.router.complexity.scorer import Scorer
from sluice.router.training.rows import NoGap, TooFewLabels

#: Between two looks, in seconds.
LOOK_SECONDS = 60.0

#: Drift of an alias is looked for no more often, since all its labels are read for it.
CHECK_AFTER = timedelta(minutes=10)

#: See `make_candidate`.
MakeCandidate = Callable[[Sequence[Labelled], Sequence[bytes], Present], Candidate]

#: The advisory lock of who works.
_LOCK = 7363623

_log = structlog.get_logger("sluice.router")


class LearningLoop:
    """Runs the loop over a database."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        settings: RetrainingSettings,
        make: MakeCandidate = make_candidate,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Args:
        pool: the database.
        settings: when to train, and on what.
        make: trains.
        look_seconds: between two looks.
        """
        self._pool = pool
        self._settings = settings
        self._make = make
        self._look_seconds = look_seconds
        self._traffic = Traffic(pool)
        self._labels = Labels(pool)
        self._models = RouterModels(pool)
        self._health = HealthRecords(pool)
        self._looked_at: datetime | None = None

    async def run(self) -> None:
        """Look for ever; while the database is away, wait and try again."""
        while True:
            try:
                await self.look()
            except DATABASE_ERRORS as error:
                _log.warning("learning waits", error=type(error).__name__, reason=str(error))
            await asyncio.sleep(self._look_seconds)

    async def look(self, train: bool = False) -> bool:
        """Do what is due.

        Args:
            train: whether candidates are due now, whenever the last ones were made.

        Returns:
            False: another process does it.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        async with self._alone() as alone:
            if not alone:
                return False
            now = await self._traffic.now()
            await self._find_re_asks(now)
            for alias in await self._traffic.aliases():
                await self._look_at(alias, now, train)
            await self._traffic.forget(now - timedelta(days=self._settings.days))
        return True

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """Holds the lock, if nobody else does; a process that dies lets it go."""
        async with self._pool.acquire() as connection:
            alone = await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK)
            try:
                yield alone
            finally:
                if alone and not connection.is_closed():
                    await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)

    async def _find_re_asks(self, now: datetime) -> None:
        since = self._looked_at or now - timedelta(hours=1)
        for each in await self._traffic.followed(since):
            if asks_again(each.features, each.next_features):
                await self._labels.signal(each.team_id, each.request_id, "re_asked", 0.0)
        self._looked_at = now - timedelta(minutes=1)  # what came late is seen next time

    async def _look_at(self, alias: str, now: datetime, train: bool) -> None:
        since = now - timedelta(days=self._settings.days)
        pairs = await self._traffic.pairs(alias, since)
        known = await self._health.find(alias)
        trained_at = None if known is None else known.trained_at
        rested = trained_at is None or now - trained_at >= timedelta(hours=self._settings.hours)
        due = pairs >= self._settings.labels and (rested or train)
        if not due and known is not None and now - known.time < CHECK_AFTER:
            return
        labelled = await self._traffic.labelled(alias, since)
        active = await self._models.active(alias)
        if due:
            trained_at = now
            await self._train(alias, labelled, active)
        psi, drop = await self._drift(alias, labelled, active)
        await self._health.put(
            AliasHealth(
                alias=alias,
                time=now,
                trained_at=trained_at,
                labels=pairs,
                score_psi=psi,
                outcome_drop=drop,
            )
        )

    async def _train(
        self, alias: str, labelled: list[Labelled], active: RouterModel | None
    ) -> None:
        recent = await self._traffic.recent(alias)
        scorer = await self._scorer(active)
        present = Present(Scorer())
        if active is not None and scorer is not None:
            present = Present(scorer, _seen_until(active.report))
        try:
            made: Candidate = await asyncio.to_thread(self._make, labelled, recent, present)
        except (TooFewLabels, NoGap) as error:
            _log.info("no candidate", alias=alias, reason=str(error))
            return
        by = By("router", "retraining", uuid_utils.compat.uuid7())
        model = await self._models.create(alias, made.file, "training", made.report, by)
        _log.info("candidate made", alias=alias, version=model.version, better=made.better)
        if made.better and self._settings.promote:
            await self._models.promote(alias, model.version, by)
            _log.info("model promoted", alias=alias, version=model.version)

    async def _scorer(self, active: RouterModel | None) -> Scorer | None:
        """What scores by the model in use; None: there is none, or none that this release can
        read, and the rule scores."""
        if active is None:
            return None
        try:
            return Scorer.of_model(await self._models.file(active))
        except InvalidModel as error:
            _log.warning("model not used", alias=active.alias, reason=str(error))
            return None

    async def _drift(
        self, alias: str, labelled: list[Labelled], active: RouterModel | None
    ) -> tuple[float | None, float | None]:
        """The PSI of the scores and the drop of the outcomes, since the model was promoted."""
        birth = None if active is None else _birth_of(active.report)
        if active is None or active.promoted_at is None or birth is None:
            return None, None
        psi = None
        recent = await self._traffic.recent(alias, active.promoted_at)
        enough = len(recent) >= ENOUGH and birth.score_edges
        scorer = await self._scorer(active) if enough else None
        if scorer is not None:
            scores = [scorer.score_features(features) for features in recent]
            psi = stability_index(birth.score_shares, shares_of(scores, birth.score_edges))
        since = (each for each in labelled if each.time > active.promoted_at)
        given = [score for each in since if (score := each.given()) is not None]
        outcomes = outcomes_of(given)
        if birth.outcomes is None or outcomes is None:
            return psi, None
        return psi, sure_drop(birth.outcomes, outcomes)


@dataclass(frozen=True, slots=True)
class _Birth:
    """What was true when a model was made, of its report."""

    score_edges: list[float]
    score_shares: list[float]
    outcomes: Outcomes | None = None
    trained_until: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


def _birth_of(report: dict[str, Any]) -> _Birth | None:
    """None: the model was uploaded, and its report says nothing of it."""
    try:
        birth = msgspec.convert(report, _Birth)
    except msgspec.ValidationError:
        return None
    return birth if len(birth.score_shares) == len(birth.score_edges) + 1 else None


def _seen_until(report: dict[str, Any]) -> datetime | None:
    birth = _birth_of(report)
    return None if birth is None else birth.trained_until
