"""The engine: one batch worker process, joined of a gateway without a door and what feeds it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass

import structlog

from sluice.billing.ledger import DATABASE_ERRORS, Ledger
from sluice.gateway.batch.companions import Companions
from sluice.gateway.batch.finisher import Finisher
from sluice.gateway.batch.items import Items
from sluice.gateway.batch.jobs import Jobs
from sluice.gateway.batch.lifecycle import Lifecycle, LifecycleConfig
from sluice.gateway.batch.metrics import BatchMetrics
from sluice.gateway.batch.runner import HeldCharges, Runner
from sluice.gateway.batch.settings import BatchSettings
from sluice.gateway.batch.storage import Storage, StorageAway
from sluice.gateway.batch.verdict import Patience
from sluice.gateway.batch.window import WindowConfig
from sluice.gateway.batch.worker import Worker, WorkerConfig
from sluice.gateway.lifeline import Cut
from sluice.gateway.wiring import Gateway

#: How often it is looked for batches that end, in seconds.
LOOK_SECONDS = 0.5

_log = structlog.get_logger("sluice.batch")


@dataclass(slots=True)
class BatchEngine:
    """One worker process.

    Attributes:
        gateway: whose pipeline serves the items.
    """

    gateway: Gateway
    items: Items
    worker: Worker
    jobs: Jobs
    lifecycle: Lifecycle
    metrics: BatchMetrics
    companions: Companions | None = None
    _ending: asyncio.Task[None] | None = None

    async def start(self) -> list[asyncio.Task[None]]:
        """Begin to work; gives the tasks, which only a fault of ours ends."""
        await self.gateway.start()
        tasks = self.worker.start()
        if self.companions is not None:
            self.companions.start()
        self._ending = asyncio.create_task(self._end_all(), name="batch-lifecycle")
        return [*tasks, self._ending]

    async def stop(self, drain_seconds: float, hurry: asyncio.Event | None = None) -> None:
        """Take no more, and let what runs end.

        Args:
            drain_seconds: after so long it is cut, and given back.
            hurry: as soon as this is set.
        """
        await self.worker.drain(drain_seconds, hurry or asyncio.Event())
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)
        if self.companions is not None:
            await self.companions.stop()
        self.gateway.lifelines.cut_all(Cut.SHUTDOWN)
        await self.worker.stop()
        await self.gateway.stop()

    async def _end_all(self) -> None:
        """End batches, and tell how many there are."""
        away = False
        while True:
            try:
                for state in await self.lifecycle.advance():
                    self.metrics.ended(state)
                self.metrics.standing(await self.jobs.open())
                away = False
            except (TimeoutError, LookupError, StorageAway, *DATABASE_ERRORS) as error:
                if not away:
                    _log.warning("batches can't be ended", error=type(error).__name__)
                away = True
            await asyncio.sleep(LOOK_SECONDS)


async def run_engine(engine: BatchEngine, drain_seconds: float) -> None:
    """Work until SIGINT or SIGTERM, then let what runs end; a second one cuts it. A fault of ours
    ends it, too: what is left runs again elsewhere, or here once the process is started again."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def told() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    tasks = await engine.start()
    _log.info("batch worker started", worker=str(engine.worker.id), pid=os.getpid())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    faults = [task for task in tasks if task.done()]
    _log.info("batch worker stopping", items=len(engine.worker))
    await engine.stop(drain_seconds, hurry)
    for task in faults:
        task.result()


def create_engine(
    gateway: Gateway,
    charges: HeldCharges,
    storage: Storage,
    given: BatchSettings,
    companions: Companions | None = None,
) -> BatchEngine:
    """Join a worker's parts; nothing runs until `start`.

    Args:
        gateway: whose pipeline leaves its usage events with `charges`.
        storage: where the files lie.
        companions: what else the process does; None: nothing, and items are called live only.
    """
    workers = given.workers
    items = Items(gateway.pool, Ledger(gateway.pool))
    jobs = Jobs(gateway.pool)
    metrics = BatchMetrics(gateway.metrics.registry)
    worker = Worker(
        items,
        jobs,
        storage,
        Runner(gateway.pipeline, gateway.ring, charges),
        Finisher(items, metrics.settled),
        WorkerConfig(
            WindowConfig(most=min(workers.max_concurrent_per_model, workers.max_concurrent)),
            Patience(workers.attempts),
            workers.max_concurrent,
            workers.lease_seconds,
        ),
        companions.goes_natively if companions is not None else lambda _: False,
        metrics.lapsed,
    )
    lifecycle = Lifecycle(
        gateway.pool,
        items,
        storage,
        LifecycleConfig(workers.grace_seconds, int(given.record_days * 86_400)),
    )
    return BatchEngine(gateway, items, worker, jobs, lifecycle, metrics, companions)
