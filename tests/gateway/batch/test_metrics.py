"""What a worker's metrics say of all batches, and of what it found itself."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from prometheus_client import CollectorRegistry

from sluice.gateway.batch.items import Lapsed
from sluice.gateway.batch.jobs import Jobs
from sluice.gateway.batch.metrics import BatchMetrics
from sluice.gateway.batch.sharing import Job
from tests.gateway.batch.jobs_site import JobsSite, chat_lines


def job(**values: Any) -> Job:
    plain = {"model": "m", "priority": "normal", "live": True, "seconds_left": 60.0}
    return Job(id=uuid4(), team_id=uuid4(), **{**plain, "waiting": 0, "running": 0, **values})


def test_the_oldest_is_the_oldest_that_waits() -> None:
    registry = CollectorRegistry()
    metrics = BatchMetrics(registry)
    metrics.standing(
        [
            job(waiting=3, running=1, age_seconds=100.0, seconds_left=900.0),
            job(native=5, age_seconds=500.0, seconds_left=300.0),
        ]
    )
    shown = {
        name: registry.get_sample_value(f"gw_batch_{name}")
        for name in ("items_waiting", "items_running", "items_native", "oldest_seconds")
    }
    assert shown == {
        "items_waiting": 3,
        "items_running": 1,
        "items_native": 5,
        "oldest_seconds": 100.0,
    }
    assert registry.get_sample_value("gw_batch_window_seconds") == 300.0
    metrics.standing([])
    assert registry.get_sample_value("gw_batch_oldest_seconds") == 0.0


def test_items_of_lost_workers_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = BatchMetrics(registry)
    metrics.lapsed(Lapsed(again=4, given_up=1))
    for outcome, count in (("lost", 4.0), ("given_up", 1.0), ("ok", 0.0)):
        labels = {"outcome": outcome}
        assert registry.get_sample_value("gw_batch_items_total", labels) == count
    assert registry.get_sample_value("gw_batches_ended_total", {"state": "expired"}) == 0.0


async def test_jobs_tell_their_age_and_what_is_with_providers(emptied_site: JobsSite) -> None:
    batch = await emptied_site.submit(chat_lines(4))
    await emptied_site.pool.execute(
        "UPDATE batches SET created_at = now() - interval '1 hour' WHERE id = $1", batch.id
    )
    await emptied_site.pool.execute(
        "UPDATE batch_items SET state = 'native' WHERE batch_id = $1 AND line = 1", batch.id
    )
    [found] = await Jobs(emptied_site.pool).open()
    assert (found.waiting, found.running, found.native) == (3, 0, 1)
    assert 3600 <= found.age_seconds < 3700
