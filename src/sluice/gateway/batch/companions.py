"""What a batch worker does besides running items: providers' own batches, and callbacks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import structlog
from prometheus_client import CollectorRegistry, Counter

from sluice.billing.ledger import Ledger
from sluice.gateway.batch.callbacks import CallbackDeliverer
from sluice.gateway.batch.items import Items
from sluice.gateway.batch.native.assembly import (
    create_native_batches,
    create_native_providers,
    create_native_rules,
)
from sluice.gateway.batch.native.rules import NativeRules
from sluice.gateway.batch.native.service import NativeBatches
from sluice.gateway.batch.storage import Storage
from sluice.gateway.egress import Egress
from sluice.gateway.quotas.needs import Needs, TokenEstimates
from sluice.gateway.settings import Config
from sluice.gateway.wiring import Gateway

_log = structlog.get_logger("sluice.batch")


@dataclass(slots=True)
class Companions:
    """The tasks of one worker process beside its items."""

    rules: NativeRules
    native: NativeBatches
    callbacks: CallbackDeliverer
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def goes_natively(self, model: str) -> bool:
        """See `Worker`."""
        return self.rules.goes_natively(model)

    def start(self) -> None:
        """Begin. The gateway must have started."""
        for name, work in (("native-batches", self.native.run), ("callbacks", self.callbacks.run)):
            task = asyncio.create_task(work(), name=name)
            task.add_done_callback(_noticed)
            self._tasks.append(task)

    async def stop(self) -> None:
        """End, wherever they are: what was begun is gone on with by others."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class CompanionMetrics:
    """Their metrics, in a registry that is somebody else's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._callbacks = Counter(
            "gw_batch_callbacks", "Deliveries of callbacks.", ("outcome",), registry=registry
        )
        self._native = Counter(
            "gw_batch_native_items",
            "Items that came back from providers' own batches: ok, or to be called live.",
            ("provider", "outcome"),
            registry=registry,
        )

    def delivered(self, outcome: str) -> None:
        """A delivery ended."""
        self._callbacks.labels(outcome).inc()

    def returned(self, provider: str, outcome: str, items: int) -> None:
        """Items came back."""
        self._native.labels(provider, outcome).inc(items)


def create_companions(config: Config, gateway: Gateway, storage: Storage) -> Companions:
    """Join them; nothing runs until `start`.

    Args:
        gateway: of the worker.
        storage: where the files lie.
    """
    metrics = CompanionMetrics(gateway.metrics.registry)
    providers = create_native_providers(config, gateway.credentials)
    rules = create_native_rules(gateway.catalog, providers)
    native = create_native_batches(
        pool=gateway.pool,
        storage=storage,
        items=Items(gateway.pool, Ledger(gateway.pool)),
        providers=providers,
        rules=rules,
        catalog=gateway.catalog,
        backends=gateway.backends,
        prices=gateway.prices,
        needs=Needs(gateway.prices, TokenEstimates()),
        admission=gateway.quotas.admission,
        keys=gateway.ring,
        gateway=gateway.id,
        observe=metrics.returned,
    )
    egress = Egress(replace(config.egress.policy(), max_redirects=0))
    callbacks = CallbackDeliverer(gateway.pool, egress, gateway.callback_secrets, metrics.delivered)
    return Companions(rules, native, callbacks)


def _noticed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("a part of the batch worker ended", part=task.get_name(), error=repr(error))
