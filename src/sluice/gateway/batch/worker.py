"""The worker: takes items as there is room for them, runs each, and has its outcome written down.

Nothing that a worker knows is needed by anybody else. Killed at any moment, it leaves items whose
leases lapse, and that run again elsewhere as if they had never begun.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import structlog
import uuid_utils.compat

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.batch.finisher import Finisher
from sluice.gateway.batch.items import (
    LEASE_SECONDS,
    Item,
    Items,
    Lapsed,
    Outcome,
    Place,
    Result,
    Retry,
)
from sluice.gateway.batch.jobs import Jobs
from sluice.gateway.batch.output import unexecuted_line
from sluice.gateway.batch.runner import Answer, Run, Runner
from sluice.gateway.batch.sharing import Job, share
from sluice.gateway.batch.storage import ObjectMissing, Storage, StorageAway
from sluice.gateway.batch.verdict import Patience, judge
from sluice.gateway.batch.window import Window, WindowConfig
from sluice.wire.objects import MalformedJSON, decode_object

#: How often it is looked for work where there is none, in seconds.
IDLE_SECONDS = 0.5

#: What is taken together: slots that become free within so many seconds.
GATHER_SECONDS = 0.02

#: How long the standing of batches is believed, in seconds.
FRESH_SECONDS = 0.25

#: Before an item runs again whose text could not be read, in seconds.
UNREAD_SECONDS = 5.0

#: A team that its own limits refuse is left alone for so many seconds at most: there may be room
#: for something smaller.
TEAM_REST_SECONDS = 10.0

#: How long runs that were cut have to end, in seconds.
_SETTLE_SECONDS = 5.0

_log = structlog.get_logger("sluice.batch")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Attributes:
    window: of each model.
    patience: with items that fail.
    most: items of all models at a time.
    lease_seconds: see `Items`.
    """

    window: WindowConfig
    patience: Patience
    most: int = 256
    lease_seconds: float = LEASE_SECONDS


@dataclass(slots=True)
class _Held:
    """An item that this worker has: while it runs, how."""

    run: Run | None = None


@dataclass(slots=True)
class _Board:
    """The open batches when last seen, and what was taken of them since.

    Attributes:
        read_at: when that was, on the monotonic clock.
    """

    jobs: list[Job] = field(default_factory=list)
    read_at: float = float("-inf")

    def taken(self, wanted: Mapping[UUID, int], items: Sequence[Item]) -> None:
        """Of batches that gave less than was wanted nothing is to be had for now."""
        got: dict[UUID, int] = dict.fromkeys(wanted, 0)
        for item in items:
            got[item.batch_id] += 1
        self.jobs = [
            job
            if job.id not in got
            else replace(
                job,
                waiting=0 if got[job.id] < wanted[job.id] else job.waiting - got[job.id],
                running=job.running + got[job.id],
            )
            for job in self.jobs
        ]


class Worker:
    """See the module.

    Attributes:
        id: its own, by which items are its.
    """

    def __init__(
        self,
        items: Items,
        jobs: Jobs,
        storage: Storage,
        runner: Runner,
        finisher: Finisher,
        config: WorkerConfig,
        goes_natively: Callable[[str], bool],
        lapsed: Callable[[Lapsed], None] = lambda lapsed: None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        goes_natively: whether items of a model may go to a provider's own batches, which is then
            decided before they are called live.
        lapsed: is told of items whose workers were lost.
        draw: gives a number in [0, 1).
        """
        self.id: UUID = uuid_utils.compat.uuid7()
        self._items = items
        self._jobs = jobs
        self._storage = storage
        self._runner = runner
        self._finisher = finisher
        self._config = config
        self._goes_natively = goes_natively
        self._lapsed = lapsed
        self._clock = clock
        self._draw = draw
        self._windows: dict[str, Window] = {}
        self._resting_teams: dict[UUID, float] = {}
        self._held: dict[Place, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._board = _Board()
        self._taking: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Items that it has."""
        return len(self._held)

    def start(self) -> list[asyncio.Task[None]]:
        """Begin to take items; gives the tasks, which only a fault of ours ends."""
        self._taking = asyncio.create_task(self._take_all(), name="batch-worker")
        self._keeping = asyncio.create_task(self._keep_all(), name="batch-leases")
        return [self._taking, self._keeping]

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Take nothing more, and let what runs end; what doesn't within so many seconds, or before
        `hurry` is set, is cut, and given back."""
        await _ended(self._taking)
        hurried = asyncio.ensure_future(hurry.wait())
        idle = asyncio.ensure_future(self._idle())
        await asyncio.wait({idle, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (hurried, idle):
            waiter.cancel()
        for held in list(self._held.values()):
            if held.run is not None:
                held.run.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SETTLE_SECONDS)

    async def stop(self) -> None:
        """End, and give back what it still has. The pipeline must have ended before."""
        await _ended(self._taking)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _ended(self._keeping)
        try:
            await self._items.release(self.id)
        except DATABASE_ERRORS:
            _log.warning("items not given back, their leases will lapse", items=len(self._held))

    async def _idle(self) -> None:
        """Until nothing runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_all(self) -> None:
        away = False
        while True:
            self._freed.clear()
            taken = 0
            try:
                taken = await self._take()
                away = False
            except (TimeoutError, *DATABASE_ERRORS) as error:
                if not away:
                    _log.warning("batch work can't be taken", error=type(error).__name__)
                away = True
            if taken == 0 or away:
                try:
                    await asyncio.wait_for(self._freed.wait(), IDLE_SECONDS)
                except TimeoutError:
                    continue
            await asyncio.sleep(GATHER_SECONDS)

    async def _take(self) -> int:
        """Take what there is room for; the number."""
        now = self._clock()
        if now - self._board.read_at > FRESH_SECONDS:
            self._board.jobs = await self._jobs.open()
            self._board.read_at = now
        wanted = self._wanted(now)
        items = await self._items.claim(self.id, wanted, self._config.lease_seconds)
        self._board.taken(wanted, items)
        for item in items:
            self._begin(item)
        return len(items)

    def _wanted(self, now: float) -> dict[UUID, int]:
        """How many items of which batch there is room for."""
        models: dict[str, list[Job]] = {}
        for job in self._board.jobs:
            rests = self._resting_teams.get(job.team_id, now) > now
            if job.waiting > 0 and not rests and (job.live or not self._goes_natively(job.model)):
                models.setdefault(job.model, []).append(job)
        left = self._config.most - len(self._held)
        wanted: dict[UUID, int] = {}
        for model, jobs in models.items():
            window = self._window(model)
            share_of = share(min(left, window.room(now)), jobs, window.item_seconds)
            left -= sum(share_of.values())
            wanted |= share_of
        return wanted

    def _window(self, model: str) -> Window:
        window = self._windows.get(model)
        if window is None:
            window = self._windows[model] = Window(self._config.window)
        return window

    def _begin(self, item: Item) -> None:
        held = self._held[item.place] = _Held()
        self._window(item.model).began()
        task = asyncio.create_task(self._serve(item, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, item: Item, held: _Held) -> None:
        """One item, from its text to its outcome on record."""
        window, began = self._window(item.model), self._clock()
        answer: Answer | None = None
        answered = began
        try:
            body = await self._read(item)
            if isinstance(body, bytes):
                held.run = self._runner.start(item, body)
                answer = await held.run.answer()
                outcome = self._judge(item, answer)
            else:
                outcome = body
            held.run, answered = None, self._clock()
            await self._finisher.put(outcome)
        except Exception:  # noqa: BLE001 - its lease lapses, and it is counted as lost
            _log.exception("item failed", batch=str(item.batch_id), line=item.line)
        finally:
            del self._held[item.place]
            self._free(window, item, answer, began, answered)
            self._freed.set()

    def _judge(self, item: Item, answer: Answer) -> Outcome:
        left = item.expires_at.timestamp() - time.time()
        return judge(item, answer, self._config.patience, self._draw, left)

    def _free(
        self, window: Window, item: Item, answer: Answer | None, began: float, answered: float
    ) -> None:
        """What an answer says of the room there is."""
        if answer is None or answer.status == 0:
            window.released()
        elif answer.refuser == "model":
            window.refused(began, answered, 0.0 if answer.tried else answer.retry_after or 0.0)
        elif answer.refuser is None:
            window.answered(began, answered, answer.queued)
        else:
            window.released()
            rest = min(answer.retry_after or 1.0, TEAM_REST_SECONDS)
            self._resting_teams[item.team_id] = answered + rest

    async def _read(self, item: Item) -> bytes | Outcome:
        """The request's body; or what comes of it if it can't be read."""
        place = (item.batch_id, item.line)
        try:
            text = await self._storage.range(item.object, item.offset, item.length)
            return bytes(decode_object(text)["body"])
        except StorageAway as error:
            _log.warning("input of a batch can't be read", reason=str(error))
            return Retry(*place, item.request_id, UNREAD_SECONDS, counts=False)
        except (ObjectMissing, MalformedJSON, KeyError) as error:
            _log.error("input of a batch is gone", batch=str(item.batch_id), line=item.line)
            code, message = "input_gone", "The request can't be read from the input file any more."
            line = unexecuted_line(item.request_id, item.custom_id, code, message)
            del error
            return Result(*place, False, line)

    async def _keep_all(self) -> None:
        """Renew the leases of what it has; drop what is its no more; see to what others lost."""
        lease = self._config.lease_seconds
        while True:
            await asyncio.sleep(lease / 3)
            try:
                async with asyncio.timeout(lease / 3):
                    await self._keep(lease)
            except (TimeoutError, *DATABASE_ERRORS) as error:
                _log.warning("leases of items not renewed", error=type(error).__name__)

    async def _keep(self, lease: float) -> None:
        places = list(self._held)
        if places:
            for place in set(places) - await self._items.renew(self.id, places, lease):
                held = self._held.get(place)
                if held is not None and held.run is not None:
                    held.run.cut()
        lapsed = await self._items.reap(lease)
        self._lapsed(lapsed)
        if lapsed.again:
            _log.warning("items of lost workers run again", items=lapsed.again)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
