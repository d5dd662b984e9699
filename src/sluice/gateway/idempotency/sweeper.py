"""The sweeper: frees the keys of generations whose gateways are gone, and charges what was
delivered of them.

Every gateway has one. A lost generation is given to one of them, for the time of a lease: should
that one be lost as well, another gets it. What is charged twice that way is one record, by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from sluice.billing.events import decode_events
from sluice.billing.recorder import Recorder, UsageNotDurable
from sluice.gateway.background import Background
from sluice.gateway.idempotency.tapes import Tapes, TapesAway

_log = structlog.get_logger("sluice.idempotency")


class Sweeper(Background):
    """Looks for lost generations; see the module."""

    name = "idempotency-sweeper"

    def __init__(
        self,
        tapes: Tapes,
        recorder: Recorder,
        observe_lost: Callable[[], None],
        period_seconds: float,
        patience_seconds: float,
    ) -> None:
        """Args:
        observe_lost: is called for each that is found.
        period_seconds: between two looks.
        patience_seconds: until the next look after Redis was away.
        """
        super().__init__()
        self._tapes = tapes
        self._recorder = recorder
        self._observe_lost = observe_lost
        self._period_seconds = period_seconds
        self._patience_seconds = patience_seconds

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                await self.sweep()
            except TapesAway:  # leases ran out while nobody could renew them: give them the time
                await asyncio.sleep(self._patience_seconds)

    async def sweep(self) -> None:
        """Look once.

        Raises:
            TapesAway: see there.
        """
        for owner, event in (await self._tapes.reap()).items():
            _log.warning("generation lost", request_id=owner, charged=bool(event))
            self._observe_lost()
            try:
                for due in decode_events(event) if event else []:
                    await asyncio.shield(self._recorder.submit(due))
            except (UsageNotDurable, msgspec.DecodeError) as error:  # another process may do it
                _log.critical("usage not durable", request_id=owner, reason=str(error))
                continue
            await self._tapes.bury(owner)
