"""Joins what a gateway process has of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import asyncpg

from sluice.billing.prices import Price, nano_usd
from sluice.gateway.auth import KeyRing, Principal
from sluice.gateway.database_poll import DatabasePoll
from sluice.gateway.learning.comparison import Comparisons, Outcome
from sluice.gateway.learning.feedback import FeedbackBox
from sluice.gateway.learning.health import HealthRecords, health_poll
from sluice.gateway.learning.labels import Labels, Signal
from sluice.gateway.learning.models import changed_models
from sluice.gateway.learning.observer import AnswerObserver, Sampling
from sluice.gateway.learning.retention import RouteSweeper
from sluice.gateway.learning.scorer_sync import ScorerSync
from sluice.gateway.learning.settings import ComparisonSettings, LearningSettings
from sluice.gateway.learning.side_calls import Payer, SideCalls
from sluice.gateway.learning.spending import DailyBudget
from sluice.gateway.metrics import Metrics
from sluice.router.auto.scorers import Scorers
from sluice.router.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Learning:
    """What a gateway process has of the loop.

    Attributes:
        answers: looks at answers.
        box: takes feedback.
        scorers: follows the models.
        health: follows what the loop found.
        sweeper: removes what is old.
    """

    answers: AnswerObserver
    box: FeedbackBox
    scorers: ScorerSync
    health: DatabasePoll
    sweeper: RouteSweeper

    async def start(self) -> None:
        """Load the models, and go on in the background.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        await self.scorers.start()
        await self.health.start()
        await self.sweeper.start()

    async def stop(self) -> None:
        """Let go of everything."""
        await self.answers.stop()
        await self.scorers.stop()
        await self.health.stop()
        await self.sweeper.stop()


def create_learning(
    settings: LearningSettings,
    pool: asyncpg.Pool,
    *,
    ring: KeyRing,
    catalog: Catalog,
    prices: Mapping[str, Price],
    calls: SideCalls,
    scorers: Scorers,
    metrics: Metrics,
) -> Learning:
    """Join it; nothing runs until `start`.

    Args:
        settings: the configuration's section.
        pool: the database.
        ring: the callers, among them who pays for comparisons.
        catalog: the models, among them the judge.
        prices: by model name.
        calls: make comparisons.
        scorers: what scores requests; follows the models.
        metrics: of this process.
    """
    labels, given = Labels(pool), settings.comparisons
    comparisons = sampling = None
    if given is not None:
        comparisons = Comparisons(
            calls=calls,
            judge=partial(catalog.get, given.judge),
            prices=prices,
            budget=DailyBudget(pool, nano_usd(given.daily_budget_usd)),
            labels=labels,
        )
        sampling = _sampling(given, ring)

    def on_signal(signal: Signal) -> None:
        metrics.auto_signals.labels(signal).inc()

    def on_comparison(outcome: Outcome) -> None:
        metrics.auto_comparisons.labels(outcome).inc()

    return Learning(
        AnswerObserver(labels, comparisons, sampling, on_signal, on_comparison),
        FeedbackBox(labels),
        ScorerSync(partial(changed_models, pool), scorers),
        health_poll(HealthRecords(pool), metrics),
        RouteSweeper(pool, timedelta(days=settings.retention_days)),
    )


def _sampling(given: ComparisonSettings, ring: KeyRing) -> Sampling:
    def payer(caller: Principal) -> Payer | None:
        paying = caller if given.team is None else ring.of_team(given.team)
        return None if paying is None else Payer(paying.team_id, paying.key_id)

    return Sampling(given.judge, given.share, payer)
