"""The watcher: follows batches at providers to their end, and takes their items back in time.

A batch whose end is asked for, or whose deadline leaves just the time that live calls need, is
cancelled at the provider; what was done of it by then counts. Should the provider take too long
over that, its items are taken back without. Writing results down may be broken off at any moment
and begun again: an item ends once, and is charged with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
import uuid_utils.compat

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.billing.prices import Price
from sluice.gateway.auth import KeyRing, Principal
from sluice.gateway.batch.items import Items, Result
from sluice.gateway.batch.native.preparation import Preparation, Unfit, line_of
from sluice.gateway.batch.native.provider import (
    NativeProvider,
    Progress,
    ProviderError,
    Unknown,
)
from sluice.gateway.batch.native.records import NativeBatch, NativeRecords
from sluice.gateway.batch.native.results import Outcome
from sluice.gateway.batch.native.rules import NativePolicy, must_return
from sluice.gateway.batch.native.submitter import Submitter
from sluice.gateway.batch.native.text import InputText
from sluice.gateway.batch.native.verdicts import Moment, result_of
from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway
from sluice.gateway.quotas.admission import Admission

#: Results that are written down together, and about how many characters of them.
GROUP = 100
GROUP_CHARACTERS = 16 * 1024 * 1024

#: How often a batch that is being cancelled is looked at, in seconds, at least.
CANCELLING_SECONDS = 10.0

#: How long a provider may take over a cancellation that a team waits for.
CANCEL_PATIENCE = timedelta(minutes=8)

_log = structlog.get_logger("sluice.native")


@dataclass(slots=True)
class _Tally:
    """What is seen of the results of one batch.

    Attributes:
        ours: result lines with a name of ours.
        written: items that ended.
        broken: result lines that can't be read, or are no item's.
        again: lines of items that were tried, and are called live.
        waiting: results that are to be written down.
        characters: of these.
    """

    ours: int = 0
    written: int = 0
    broken: int = 0
    again: list[int] = field(default_factory=list)
    waiting: list[Result] = field(default_factory=list)
    characters: int = 0


class Watcher:
    """See the module."""

    def __init__(
        self,
        *,
        records: NativeRecords,
        providers: Mapping[str, NativeProvider],
        submitter: Submitter,
        preparation: Preparation,
        storage: Storage,
        items: Items,
        prices: Mapping[str, Price],
        keys: KeyRing,
        admission: Admission,
        gateway: str,
        observe: Callable[[str, str, int], None] = lambda provider, outcome, items: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        providers: by name.
        submitter: goes on with what was not handed over for certain.
        prices: by model name; a model without one is free.
        gateway: this process's id.
        observe: is told of how many items of a provider ended how: `ok` or `live`.
        clock: the time now.
        """
        self._records = records
        self._providers = providers
        self._submitter = submitter
        self._preparation = preparation
        self._storage = storage
        self._items = items
        self._prices = prices
        self._keys = keys
        self._admission = admission
        self._gateway = gateway
        self._observe = observe
        self._clock = clock

    async def look(self) -> bool:
        """See to the next batch that is due; False: none is.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        native = await self._records.claim()
        if native is None:
            return False
        if native.upstream_id is None:
            await self._submitter.hand_over(native, again=True)
            return True
        provider = self._providers.get(native.provider)
        if provider is None:
            await self._take_back(native, "the provider's batches are not used any more")
            return True
        try:
            await self._follow(native, native.upstream_id, provider)
        except DATABASE_ERRORS:
            raise
        except (ProviderError, StorageAway, ObjectMissing) as error:
            _log.warning(
                "native batch can't be followed", native_batch=native.id.hex, reason=str(error)
            )
            await self._go_on(native, provider, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not keep its items
            _log.exception("native batch can't be followed", native_batch=native.id.hex)
            await self._go_on(native, provider, error)
        return True

    async def _go_on(self, native: NativeBatch, provider: NativeProvider, error: Exception) -> None:
        """After a look that failed: look again, unless that is of no use or too late."""
        policy = provider.policy
        if self._too_late(native, policy) or isinstance(error, Unknown | ObjectMissing):
            await self._take_back(native, str(error))
        else:
            await self._records.look_again(
                native.id, policy.poll_seconds, self._ends(native, policy)
            )

    async def _follow(
        self, native: NativeBatch, upstream_id: str, provider: NativeProvider
    ) -> None:
        key = provider.key(native.credential)
        progress = await provider.batches.progress(upstream_id, key)
        match progress.state:
            case "failed":
                await self._take_back(native, progress.error or "failed")
                await self._remove(upstream_id, provider, progress, key)
            case "ended":
                await self._reconcile(native, upstream_id, provider, progress)
            case _ if self._too_late(native, provider.policy):
                await self._take_back(native, "the provider takes too long to cancel it")
            case _:
                await self._wait(native, upstream_id, provider)

    async def _wait(self, native: NativeBatch, upstream_id: str, provider: NativeProvider) -> None:
        """It is under way; it goes on, or is asked to end."""
        seconds = provider.policy.poll_seconds
        cancelling = self._ends(native, provider.policy)
        if cancelling:
            await provider.batches.cancel(upstream_id, provider.key(native.credential))
            seconds = min(seconds, CANCELLING_SECONDS)
        await self._records.look_again(native.id, seconds, cancelling)

    def _ends(self, native: NativeBatch, policy: NativePolicy) -> bool:
        """Whether its items are to come back now, done or not."""
        return must_return(policy, native.status, native.expires_at, self._clock())

    def _too_late(self, native: NativeBatch, policy: NativePolicy) -> bool:
        """Whether a provider has had its time to cancel a batch, or there is none."""
        now = self._clock()
        if native.expires_at <= now:
            return True
        if native.cancelling_at is None:
            return False
        patience = policy.live_time / 4 if native.status == "in_progress" else CANCEL_PATIENCE
        return now - native.cancelling_at > patience

    async def _take_back(self, native: NativeBatch, reason: str) -> None:
        """It came to nothing, or must not be waited for; its items are called live."""
        items = await self._records.give_back(native)
        await self._records.done(native.id, reason)
        self._observe(native.provider, "live", items)
        _log.warning(
            "native batch given up, its items are called live",
            native_batch=native.id.hex,
            provider=native.provider,
            upstream_id=native.upstream_id,
            items=items,
            reason=reason,
        )

    async def _reconcile(
        self, native: NativeBatch, upstream_id: str, provider: NativeProvider, progress: Progress
    ) -> None:
        """Write down what came of a batch that has ended."""
        key = provider.key(native.credential)
        items = await self._records.items(native.id)
        text = await InputText.read(self._storage, native, items)
        principal = self._keys.holder(str(native.key_id))
        tally = _Tally()
        if items:
            async for outcome in provider.batches.results(upstream_id, progress, key):
                self._take_in(native, text, outcome, principal, provider.policy, tally)
                if len(tally.waiting) >= GROUP or tally.characters > GROUP_CHARACTERS:
                    await self._write(native, principal, tally)
        await self._write(native, principal, tally)
        live = await self._records.give_back(native, tally.again, attempts=1)
        live += await self._records.give_back(native)
        self._observe(native.provider, "ok", tally.written)
        self._observe(native.provider, "live", live)
        log = _log.warning if tally.broken or tally.again else _log.info
        log(
            "native batch reconciled",
            native_batch=native.id.hex,
            provider=native.provider,
            upstream_id=upstream_id,
            items=tally.written,
            called_live=live,
            unreadable_lines=tally.broken,
        )
        await self._records.done(native.id)
        if tally.ours or not tally.broken:  # else it may be a stranger's that was taken for it
            await self._remove(upstream_id, provider, progress, key)

    async def _remove(
        self, upstream_id: str, provider: NativeProvider, progress: Progress, key: str
    ) -> None:
        """Leave nothing of the tenant's at the provider, as far as that can be done."""
        try:
            await provider.batches.remove(upstream_id, progress, key)
        except ProviderError as error:
            _log.warning("native batch not removed", upstream_id=upstream_id, reason=str(error))

    def _take_in(
        self,
        native: NativeBatch,
        text: InputText,
        outcome: Outcome | None,
        principal: Principal | None,
        policy: NativePolicy,
        tally: _Tally,
    ) -> None:
        """One result line."""
        line = None if outcome is None else line_of(native, outcome.name)
        if outcome is None or line is None:
            tally.broken += 1
            return
        tally.ours += 1
        item = text.items.get(line)
        if item is None or outcome.status is None:  # it ended before, or it was not run
            return
        payer = principal or _former(native)
        try:
            prepared = self._preparation.prepare(native, item, text.line(item), payer, sent=True)
        except Unfit:
            result = None
        else:
            moment = Moment(
                uuid_utils.compat.uuid7(), payer.key_id, self._admission.now_us(), self._gateway
            )
            price = policy.price(self._prices.get(native.model, Price()))
            result = result_of(native, prepared, outcome, price, moment)
        if result is None:
            tally.again.append(line)
        else:
            tally.waiting.append(result)
            tally.characters += len(result.text)

    async def _write(self, native: NativeBatch, principal: Principal | None, tally: _Tally) -> None:
        """End the items whose results wait, and charge those that were not over before."""
        results, tally.waiting, tally.characters = tally.waiting, [], 0
        counted = await self._items.finish(results)
        tally.written += len(counted)
        for result in results:
            if principal is not None and result.event is not None and result.place in counted:
                event = result.event
                self._admission.charge(principal.policy, event.time_us, event.cost_nano_usd)
        await asyncio.sleep(0)


def _former(native: NativeBatch) -> Principal:
    """Who made the batch, with a key that is not valid any more."""
    return Principal("", str(native.team_id), "", str(native.key_id))
