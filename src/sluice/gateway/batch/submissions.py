"""Submissions: from what a caller asks for, by either front door, to a batch on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID
from weakref import WeakValueDictionary

from sluice.backends.base import Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.batch.batches import Batch, Batches, InputGone, NewBatch
from sluice.gateway.batch.files import File, NewFile, TooMany
from sluice.gateway.batch.lines import LineRefused, Scan
from sluice.gateway.batch.once import MadeMeanwhile, Once
from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway
from sluice.gateway.batch.uploads import (
    Announced,
    Stored,
    Uploads,
    end_of,
    of_line,
    storage_away,
    too_many,
)
from sluice.gateway.egress import Egress, EgressRefused
from sluice.gateway.errors import GatewayError
from sluice.gateway.idempotency.refusals import in_progress, reused
from sluice.gateway.tenancy.limits import Priority, less_urgent
from sluice.router.catalog import Catalog
from sluice.router.policy import RoutingRefused, choose_model

#: Bytes of an input that are read without a pause.
_SCANNED_A_TURN = 64 * 1024

#: The alias that a model's name is for a team, where one is chosen for each request; else None.
AliasOf = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller asks for beside the requests.

    Attributes:
        endpoint: that the caller named; None: that of the lines.
        priority: no more urgent than the caller's limits say.
        output_expires_seconds: None: as long as the configuration says.
        callback_url: is told of the end.
        once: what the call is known by, if it may be repeated.
    """

    completion_window: timedelta
    endpoint: Endpoint | None = None
    priority: Priority = "normal"
    metadata: dict[str, str] | None = None
    output_expires_seconds: int | None = None
    callback_url: str | None = None
    once: Once | None = None


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """Attributes:
    max_line_bytes: of one request, which may come alone with as much.
    input_seconds: how long inputs are kept.
    """

    max_line_bytes: int
    input_seconds: int


class Submissions:
    """Makes batches."""

    def __init__(
        self,
        storage: Storage,
        uploads: Uploads,
        batches: Batches,
        catalog: Catalog,
        alias_of: AliasOf,
        egress: Egress,
        limits: SubmissionLimits,
    ) -> None:
        self._storage = storage
        self._uploads = uploads
        self._batches = batches
        self._catalog = catalog
        self._egress = egress
        self._alias_of = alias_of
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.limits = limits

    def scan(self, *, keep: bool) -> Scan:
        """A scan within the limits. `keep`: for a batch that is made at once."""
        return Scan(self.limits.max_line_bytes, keep=keep)

    async def knows(self, principal: Principal, key: bytes | None) -> bool:
        """Whether a call with the key (see `once_key`) has made a batch."""
        if key is None:
            return False
        return await self._batches.made_by(UUID(principal.team_id), key) is not None

    async def made_before(self, principal: Principal, call: Once | None) -> Batch | None:
        """The batch that the same call has made before; None: it is the first, or has no key.

        Raises:
            GatewayError: 422, its key is that of another call.
        """
        made = None
        if call is not None:
            made = await self._batches.made_by(UUID(principal.team_id), call.key)
        if made is None or call is None:
            return None
        batch, content = made
        if content != call.content:
            raise reused()
        return batch

    async def made_already(self, principal: Principal, call: Once | None) -> Batch:
        """The same, after another call with the key was quicker.

        Raises:
            GatewayError: see `made_before`; 409, it is not there any more.
        """
        made = await self.made_before(principal, call)
        if made is None:
            raise in_progress()
        return made

    async def of_file(self, principal: Principal, file: File, wishes: Wishes) -> Batch:
        """Make a batch of a file that was uploaded before.

        Raises:
            GatewayError: the file is no input, or not of what was asked for; or a model or a
                callback is not the caller's to use.
        """
        self.check(wishes)
        if file.purpose != "batch":
            raise GatewayError.invalid(
                f"The file's purpose is `{file.purpose}`; a batch's input has the purpose `batch`.",
                "input_file_id",
                "invalid_file_purpose",
            )
        await self._check_room(principal)
        # a short call costs seconds of a core and many items in memory: a team has one at a time
        async with self._turns.setdefault(principal.team_id, asyncio.Lock()):
            return await self._of_file(principal, file, wishes)

    async def _of_file(self, principal: Principal, file: File, wishes: Wishes) -> Batch:
        scan = self.scan(keep=True)
        try:
            async for part in self._storage.read(file.object, 0, file.bytes):
                for start in range(0, len(part), _SCANNED_A_TURN):
                    scan.feed(part[start : start + _SCANNED_A_TURN])
                    await asyncio.sleep(0)  # others have their turn
            end_of(scan)
        except LineRefused as fault:
            raise of_line(fault) from None
        except (StorageAway, ObjectMissing):
            raise storage_away() from None
        new = self._new(principal, scan, wishes)
        try:
            await self._batches.check_room(new.team_id, len(scan.items))
            return await self._batches.create(new, scan.items, file)
        except MadeMeanwhile:
            return await self.made_already(principal, wishes.once)
        except TooMany as error:
            raise too_many(error) from None
        except InputGone:
            raise GatewayError.not_found(
                "The input file was deleted.", param="input_file_id"
            ) from None

    async def of_content(
        self,
        announced: Announced,
        content: AsyncIterator[bytes],
        scan: Scan,
        ask: Callable[[], Wishes],
        name: Callable[[], str] = lambda: "batch.jsonl",
    ) -> Batch:
        """Make a batch and its input file of requests as they arrive.

        Args:
            content: checked by `scan` on its way (see `uploads`).
            ask, name: give the wishes and the file's name, when all of the content has come.

        Raises:
            GatewayError: as for `of_file`, or a request is wrong, or the team has no room left.
        """
        principal, call = announced.principal, None
        await self._check_room(principal)
        try:
            async with self._uploads.stored(announced, content) as stored:
                wishes = ask()
                call = wishes.once
                return await self._of_stored(principal, stored, scan, wishes, name())
        except MadeMeanwhile:
            return await self.made_already(principal, call)
        except TooMany as error:
            raise too_many(error) from None

    async def _of_stored(
        self, principal: Principal, stored: Stored, scan: Scan, wishes: Wishes, name: str
    ) -> Batch:
        self.check(wishes)
        new = self._new(principal, scan, wishes)
        upload = NewFile(
            id=stored.id,
            team_id=new.team_id,
            key_id=new.key_id,
            purpose="batch",
            filename=name,
            bytes=stored.bytes,
            object=stored.object,
            lines=scan.count,
            endpoint=new.endpoint,
            expires_seconds=self.limits.input_seconds,
        )
        await self._batches.check_room(new.team_id, len(scan.items))
        return await self._batches.submit(new, scan.items, upload)

    async def _check_room(self, principal: Principal) -> None:
        """Before anything is sent or read: whether the team may have any more batch.

        Raises:
            GatewayError: 429, it may not.
        """
        try:
            await self._batches.check_room(UUID(principal.team_id))
        except TooMany as error:
            raise too_many(error) from None

    def check(self, wishes: Wishes) -> None:
        """See whether wishes can be met, as far as they tell alone.

        Raises:
            GatewayError: the callback's URL may not be called.
        """
        if wishes.callback_url is None:
            return
        try:
            self._egress.check(wishes.callback_url)
        except EgressRefused as error:
            raise GatewayError.invalid(
                f"`callback_url` is refused: {error}.", "callback_url", "invalid_value"
            ) from None

    def _new(self, principal: Principal, scan: Scan, wishes: Wishes) -> NewBatch:
        endpoint, model = scan.end()
        if wishes.endpoint is not None and wishes.endpoint is not endpoint:
            raise GatewayError.invalid(
                f"The file's requests have the `url` `/v1/{endpoint.value}`, from line"
                f" {scan.items[0].line} on; the batch's `endpoint` is"
                f" `/v1/{wishes.endpoint.value}`.",
                "endpoint",
                "mismatched_endpoint",
            )
        self._check_target(principal, endpoint, model)
        return NewBatch(
            team_id=UUID(principal.team_id),
            key_id=UUID(principal.key_id),
            endpoint=endpoint.value,
            model=model,
            completion_window=wishes.completion_window,
            priority=less_urgent(principal.policy.priority, wishes.priority),
            output_expires_seconds=wishes.output_expires_seconds,
            metadata=wishes.metadata,
            callback_url=wishes.callback_url,
            once=wishes.once,
        )

    def _check_target(self, principal: Principal, endpoint: Endpoint, model: str) -> None:
        if not principal.policy.allows_endpoint(endpoint):
            raise GatewayError.endpoint_forbidden(endpoint.value)
        try:
            if self._alias_of(model, principal.team_id) is None:
                choose_model(self._catalog, model, endpoint, "batch")
        except RoutingRefused as error:
            raise GatewayError.of_routing(error) from None
        if not principal.policy.allows_model(model):
            raise GatewayError.model_forbidden(model)
