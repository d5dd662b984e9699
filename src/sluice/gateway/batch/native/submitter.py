"""The submitter: hands batches over to providers.

It decides of each batch once, whether it goes natively. What goes is cut into parts, each of which
becomes one batch at the provider; then, or at once if nothing goes, the batch is `live`: what is
pending of it now or later is called live.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.auth import KeyRing, Principal
from sluice.gateway.batch.native.preparation import Preparation, Prepared, Unfit
from sluice.gateway.batch.native.provider import (
    NativeProvider,
    ProviderAway,
    ProviderRefused,
    Submission,
)
from sluice.gateway.batch.native.records import Candidate, NativeBatch, NativeRecords
from sluice.gateway.batch.native.rules import NativeRules, Target, must_return
from sluice.gateway.batch.native.text import InputText
from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway
from sluice.gateway.quotas.admission import Admission, AdmissionAway, AdmissionRefused
from sluice.gateway.quotas.needs import Need
from sluice.gateway.tenancy.limits import Policy

#: How long after a call whose end is not known it is looked whether it had an effect, in seconds.
UNCLEAR_SECONDS = 120.0

#: For how long a batch is offered to a provider that can't be reached.
PATIENCE = timedelta(minutes=30)

#: Batches that one process hands over at a time.
CONCURRENT = 4

#: Items after which other work has a turn.
TURN = 100

_log = structlog.get_logger("sluice.native")


class NotNow(Exception):
    """A part of a batch does not go natively; the message says why."""


class Later(Exception):
    """It may go in a while; the message says what stands in its way."""


class Submitter:
    """See the module."""

    def __init__(
        self,
        *,
        records: NativeRecords,
        rules: NativeRules,
        providers: Mapping[str, NativeProvider],
        preparation: Preparation,
        storage: Storage,
        keys: KeyRing,
        admission: Admission,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Args:
        providers: by name.
        clock: the time now.
        """
        self._records = records
        self._rules = rules
        self._providers = providers
        self._preparation = preparation
        self._storage = storage
        self._keys = keys
        self._admission = admission
        self._clock = clock
        self._under_way: dict[UUID, asyncio.Task[None]] = {}

    async def decide_all(self) -> None:
        """Decide of the batches of which it is open, and begin to hand over those that go.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        models = self._rules.models()
        candidates = await self._records.undecided(models) if models else []
        for candidate in candidates:
            if candidate.id in self._under_way:
                continue
            target = self._rules.decide(
                candidate.model,
                candidate.endpoint,
                candidate.total,
                candidate.expires_at,
                self._clock(),
            )
            if target is None:
                await self._records.decided(candidate.id)
            elif len(self._under_way) < CONCURRENT:
                task = asyncio.create_task(self._send(candidate, target), name="native-submission")
                self._under_way[candidate.id] = task

    async def idle(self) -> None:
        """Wait for what is being handed over."""
        await asyncio.gather(*self._under_way.values())

    async def stop(self) -> None:
        """Break off what is being handed over; somebody else goes on with it."""
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _send(self, candidate: Candidate, target: Target) -> None:
        """Hand over a batch, part by part, as long as parts go."""
        try:
            while True:
                native = await self._take(candidate, target)
                if native is None or not await self.hand_over(native, again=False):
                    break
            await self._records.decided(candidate.id)
        except DATABASE_ERRORS as error:  # it is seen again
            _log.warning("native batch not submitted", error=type(error).__name__)
        except Exception:  # noqa: BLE001 - whatever it is, the batch must go on
            _log.exception("native batch not submitted", batch=str(candidate.id))
            await self._records.decided(candidate.id)
        finally:
            del self._under_way[candidate.id]

    async def _take(self, candidate: Candidate, target: Target) -> NativeBatch | None:
        deployment = target.deployment
        credential = self._providers[deployment.provider].choose(deployment.name)
        return await self._records.take(
            candidate.id, candidate.model, deployment.name, credential.label
        )

    async def hand_over(self, native: NativeBatch, again: bool) -> bool:
        """Hand a part over, or give its items back.

        Args:
            again: this may have been begun before, and the provider may have it already.

        Returns:
            Whether the provider has it, or may have it.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        try:
            upstream_id = await self._hand_over(native, again)
        except (ProviderAway, StorageAway, Later) as error:
            if self._clock() - native.created_at < PATIENCE:
                _log.warning("native batch waits", native_batch=native.id.hex, reason=str(error))
                await self._records.look_again(native.id, UNCLEAR_SECONDS)
                return True
            reason = str(error)
        except (ProviderRefused, ObjectMissing, NotNow) as error:
            reason = str(error)
        except DATABASE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not keep its items
            _log.exception("native batch not submitted", native_batch=native.id.hex)
            reason = type(error).__name__
        else:
            await self._records.submitted(
                native.id, upstream_id, self._providers[native.provider].policy.poll_seconds
            )
            return True
        items = await self._records.give_back(native)
        await self._records.done(native.id, reason)
        _log.warning(
            "native batch not submitted, its items are called live",
            native_batch=native.id.hex,
            provider=native.provider,
            items=items,
            reason=reason,
        )
        return False

    async def _hand_over(self, native: NativeBatch, again: bool) -> str:
        provider = self._providers.get(native.provider)
        if provider is None:
            raise NotNow("the provider's batches are not used any more")
        key = provider.key(native.credential)
        principal = self._keys.holder(str(native.key_id))
        if principal is None:
            raise NotNow("the key is not valid any more")
        prepared = await self._prepare_all(native, principal)
        submission = Submission(
            id=native.id,
            endpoint=prepared[0].endpoint,
            made_at=native.created_at,
            requests=[each.request for each in prepared],
        )
        if again:
            known = await self._records.known(native.provider)
            upstream_id = await provider.batches.find(submission, known, key)
            if upstream_id is not None:
                return upstream_id
        policy = provider.policy
        if must_return(policy, native.status, native.expires_at, self._clock()):
            raise NotNow("the batch ends, or its deadline is near")
        cost = math.ceil(sum(each.need_nano_usd for each in prepared) * policy.price_share)
        await self._check_budgets(principal, native, cost)
        upstream_id = await provider.batches.submit(submission, key)
        _log.info(
            "native batch submitted",
            native_batch=native.id.hex,
            provider=native.provider,
            upstream_id=upstream_id,
            items=len(prepared),
        )
        return upstream_id

    async def _prepare_all(self, native: NativeBatch, principal: Principal) -> list[Prepared]:
        """The items as the provider takes them; those that it can't take are given back."""
        items = await self._records.items(native.id)
        text = await InputText.read(self._storage, native, items)
        prepared: list[Prepared] = []
        unfit: list[int] = []
        for number, item in enumerate(items):
            try:
                prepared.append(self._preparation.prepare(native, item, text.line(item), principal))
            except Unfit:
                unfit.append(item.line)
            if number % TURN == 0:
                await asyncio.sleep(0)
        if unfit:
            await self._records.give_back(native, unfit)
        if not prepared:
            raise NotNow("no item is fit")
        return prepared

    async def _check_budgets(self, principal: Principal, native: NativeBatch, cost: int) -> None:
        """Whether the caller's limits allow all of it now, and of what else is at providers.
        Nothing stays reserved while these take their hours: what comes of it is charged when it
        comes.

        Raises:
            NotNow: they don't; called live, each item is held against them by itself.
            Later: they may, in a while.
        """
        policy = principal.policy
        if not (policy.allows_model(native.model) and policy.allows_endpoint(native.endpoint)):
            raise NotNow("the key may not use the model or the operation")
        if not policy.counted_batch:
            return
        promised = await self._records.promise(native, cost)
        for scope in policy.scopes:
            await self._check_level(Policy.of((scope,)), promised[scope.level])

    async def _check_level(self, policy: Policy, cost: int) -> None:
        """The same for one level, and for what may be charged to it."""
        if not policy.counted_batch:
            return
        try:
            reservation = await self._admission.admit(policy, Need(nano_usd=cost), batch=True)
        except AdmissionRefused as refusal:
            if refusal.refused.dimension == "budget":
                raise NotNow("a budget does not allow it") from None
            raise Later("a limit does not allow it now") from None
        except AdmissionAway:
            raise Later("the limits can't be asked") from None
        self._admission.settle(reservation, 0, 0)
