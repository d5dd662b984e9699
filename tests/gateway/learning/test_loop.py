"""What the loop does when, without any training."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import uuid_utils.compat

from sluice.gateway.learning.drift import Outcomes
from sluice.gateway.learning.examples import Labelled
from sluice.gateway.learning.health import AliasHealth, HealthRecords, health_poll
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.loop import LearningLoop
from sluice.gateway.learning.models import RouterModels
from sluice.gateway.learning.retraining import Candidate, Present
from sluice.gateway.learning.settings import RetrainingSettings
from sluice.gateway.tenancy.audit import By
from sluice.router.complexity.features import extract
from sluice.router.complexity.view import RequestView
from sluice.router.training.rows import TooFewLabels
from tests.billing.samples import TEAM
from tests.gateway.learning.samples import ALIAS, STRONG, decided, model_file

BY = By("token:1", "somebody", uuid_utils.compat.uuid7())
LABELS = 100


class Trainer:
    """Makes candidates of nothing."""

    def __init__(self, better: bool = True, report: dict[str, Any] | None = None) -> None:
        self.better = better
        self.report = report or {}
        self.made: list[tuple[Sequence[Labelled], Sequence[bytes], Present]] = []
        self.open = threading.Event()
        self.open.set()

    def __call__(
        self, labelled: Sequence[Labelled], recent: Sequence[bytes], present: Present
    ) -> Candidate:
        self.made.append((labelled, recent, present))
        assert self.open.wait(10)
        return Candidate(model_file(len(self.made)), self.report, self.better)


def features(number: int) -> bytes:
    return extract(RequestView(f"question {number}", 10))


async def compared(pool: asyncpg.Pool, count: int = LABELS, weak: float = 0.5) -> None:
    """So many requests with outcomes of both tiers."""
    for number in range(count):
        made = await decided(pool, features=features(number))
        await Labels(pool).compared(TEAM, made, 1.0, weak, None)


def loop(pool: asyncpg.Pool, trainer: Any, **settings: Any) -> LearningLoop:
    return LearningLoop(pool, RetrainingSettings(labels=LABELS, **settings), trainer)


async def states(pool: asyncpg.Pool) -> list[str]:
    rows = await pool.fetch("SELECT state FROM router_models ORDER BY version")
    return [row["state"] for row in rows]


async def health(pool: asyncpg.Pool) -> AliasHealth:
    found = await HealthRecords(pool).find(ALIAS)
    assert found is not None
    return found


async def test_it_trains_when_there_are_labels_and_again_when_it_is_time(
    pool: asyncpg.Pool,
) -> None:
    trainer = Trainer()
    learning = loop(pool, trainer)
    await compared(pool, LABELS - 1)
    await learning.look()
    assert trainer.made == []
    assert ((await health(pool)).labels, (await health(pool)).trained_at) == (LABELS - 1, None)

    await decided(pool, **STRONG)  # of which nothing is known
    made = await decided(pool, features=features(LABELS))
    await Labels(pool).compared(TEAM, made, 1.0, 0.0, None)
    await learning.look()
    await learning.look()  # not yet
    [(labelled, recent, present)] = trainer.made
    assert (len(labelled), len(recent)) == (LABELS, LABELS + 1)
    assert (present.scorer.name, present.trained_until) == ("rule", None)
    assert await states(pool) == ["active"]

    await learning.look(train=True)
    assert await states(pool) == ["retired", "active"]
    later = timedelta(hours=25)
    await pool.execute("UPDATE router_health SET trained_at = trained_at - $1::interval", later)
    await learning.look()
    assert len(trainer.made) == 3


@pytest.mark.parametrize(
    ("better", "promote", "state"),
    [(True, True, "active"), (True, False, "candidate"), (False, True, "candidate")],
)
async def test_what_is_promoted(
    pool: asyncpg.Pool, better: bool, promote: bool, state: str
) -> None:
    await compared(pool)
    await loop(pool, Trainer(better), promote=promote).look()
    assert await states(pool) == [state]


async def test_the_present_model_is_asked_about_what_it_has_not_seen(pool: asyncpg.Pool) -> None:
    until = datetime(2026, 3, 5, tzinfo=UTC)
    born = {"trained_until": until.isoformat(), "score_edges": [], "score_shares": [1.0]}
    trainer = Trainer(report=born)
    await compared(pool)
    learning = loop(pool, trainer)
    await learning.look(train=True)
    await learning.look(train=True)
    present = trainer.made[1][2]
    assert (present.scorer.name.partition("-")[0], present.trained_until) == ("linear", until)


async def test_a_model_that_cannot_be_read_is_as_none_at_all(pool: asyncpg.Pool) -> None:
    trainer = Trainer()
    born = {"score_edges": [0.7], "score_shares": [0.1, 0.9]}
    models = RouterModels(pool)
    await models.create(ALIAS, model_file(), "training", born, BY)
    await models.promote(ALIAS, 1, BY)
    await pool.execute("UPDATE router_models SET file = 'of another release'")
    await compared(pool)
    assert await loop(pool, trainer).look()
    assert trainer.made[0][2].scorer.name == "rule"
    assert await states(pool) == ["retired", "active"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcomes": {"count": 0, "mean": 0.9, "variance": 0.1}},
        {"outcomes": {"count": 9, "mean": 0.9, "variance": -1}},
        {"trained_until": "2026-03-05T00:00:00"},
    ],
)
async def test_a_report_that_makes_no_sense_says_nothing(
    pool: asyncpg.Pool, wrong: dict[str, Any]
) -> None:
    born = {"score_edges": [0.7], "score_shares": [0.1, 0.9], **wrong}
    models = RouterModels(pool)
    await models.create(ALIAS, model_file(), "upload", born, BY)
    await models.promote(ALIAS, 1, BY)
    await compared(pool)
    trainer = Trainer(better=False)
    assert await loop(pool, trainer).look()
    assert trainer.made[0][2].trained_until is None
    assert (await health(pool)).outcome_drop is None


async def test_too_few_labels_are_no_fault(pool: asyncpg.Pool) -> None:
    def refuse(*_: Any) -> Candidate:
        raise TooFewLabels("too few")

    await compared(pool)
    await loop(pool, refuse).look()
    assert await states(pool) == []
    assert (await health(pool)).trained_at is not None


async def test_one_process_works_the_others_wait(pool: asyncpg.Pool) -> None:
    await compared(pool)
    busy, idle = Trainer(), Trainer()
    busy.open.clear()
    working = asyncio.create_task(loop(pool, busy).look())
    while not busy.made:
        await asyncio.sleep(0.01)
    assert not await loop(pool, idle).look()
    busy.open.set()
    assert await working
    assert await loop(pool, idle).look()
    assert idle.made == []


async def test_re_asks_become_labels(pool: asyncpg.Pool) -> None:
    asked = extract(RequestView("how do I sort a list of names by the last one", 45))
    again = extract(RequestView("no, how do I sort a list of names by the last one", 49, turns=2))
    first = await decided(pool, ago=30, features=asked)
    await decided(pool, ago=10, features=again)
    learning = loop(pool, Trainer())
    await learning.look()
    await learning.look()
    rows = await pool.fetch("SELECT request_id, source, score FROM route_labels")
    assert [tuple(row) for row in rows] == [(first, "signal:re_asked", 0.0)]


async def test_drift(pool: asyncpg.Pool) -> None:
    born = {
        "score_edges": [0.7],  # below which all requests are to this model
        "score_shares": [0.1, 0.9],
        "outcomes": asdict(Outcomes(1000, 0.9, 0.09)),
    }
    models = RouterModels(pool)
    await models.create(ALIAS, model_file(), "training", born, BY)
    await models.promote(ALIAS, 1, BY)
    learning = loop(pool, Trainer(), hours=1e6)
    await learning.look()  # nothing has been asked since
    assert await HealthRecords(pool).all() == []
    await compared(pool, 60, weak=0.5)
    await learning.look()
    found = await health(pool)
    assert found.score_psi is not None
    assert found.score_psi > 1
    assert found.outcome_drop == pytest.approx(0.4 - 1.96 * (0.09 / 1000) ** 0.5)


async def test_gateways_show_what_was_found(pool: asyncpg.Pool) -> None:
    found = AliasHealth(
        alias=ALIAS,
        time=datetime(2026, 3, 5, tzinfo=UTC),
        trained_at=None,
        labels=5,
        score_psi=0.25,
        outcome_drop=None,
    )
    await HealthRecords(pool).put(found)
    await HealthRecords(pool).put(found)
    shown: list[AliasHealth] = []

    class Observer:
        def alias_found(self, health: AliasHealth) -> None:
            shown.append(health)

    poll = health_poll(HealthRecords(pool), Observer())
    await poll.start()
    await poll.stop()
    assert shown == [found]
