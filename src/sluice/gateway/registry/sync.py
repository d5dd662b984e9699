"""Keeps a gateway's catalogue as the registry has it, by asking for what changed, several times a
second. While Postgres is away the catalogue stays as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import structlog

from sluice.gateway.database_poll import DatabasePoll
from sluice.gateway.registry.merge import merge
from sluice.gateway.registry.prices import PriceBook
from sluice.gateway.registry.versions import ModelVersion
from sluice.router.catalog import Catalog, Model, Timeouts

POLL_SECONDS = 0.25

_log = structlog.get_logger("sluice.registry")


class RegistrySync:
    """Changes the catalogue and the prices when the registry does."""

    def __init__(
        self,
        changed: Callable[[int], Awaitable[Sequence[ModelVersion]]],
        catalog: Catalog,
        prices: PriceBook,
        pools: Mapping[str, Timeouts],
        on_change: Callable[[], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Args:
        changed: gives the versions that changed after a revision.
        catalog: holds the configuration's models; they stay in it, and stay first.
        prices: likewise.
        pools: see `merge`.
        on_change: is told when the catalogue has changed.
        poll_seconds: between two looks.
        """
        self._changed = changed
        self._catalog = catalog
        self._configured: tuple[Model, ...] = tuple(catalog.models())
        self._prices = prices
        self._pools = pools
        self._on_change = on_change
        self._versions: dict[UUID, ModelVersion] = {}
        self._revision = 0
        self._problems: tuple[str, ...] = ()
        self._poll = DatabasePoll("registry", self.refresh, poll_seconds)

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
        """Look once.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be read.
        """
        changes = await self._changed(self._revision)
        if not changes:
            return
        for version in changes:
            self._versions[version.id] = version
            self._revision = max(self._revision, version.revision)
        merged = merge(self._configured, self._versions.values(), self._pools)
        self._prices.update(merged.prices)  # first, so that no request goes without
        self._catalog.replace(merged.models)
        self._on_change()
        for problem in merged.problems:
            if problem not in self._problems:
                _log.warning("model not served", problem=problem)
        self._problems = merged.problems
        _log.info("catalogue changed", models=len(merged.models), revision=self._revision)
