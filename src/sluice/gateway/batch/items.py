"""Items: the requests of batches in Postgres, claimed, and settled exactly once.

What came of an item, what it cost, its place among the done ones and its batch's counters are
written in one transaction, and only where the item was not done before. So there is nothing to
repair after a crash: either all of it is there or none, and in the second case the item's lease
lapses and it runs again. The first outcome to arrive counts; any other is thrown away with its
charge. See `docs/decisions/0015-batch-items-run-once.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import asyncpg
import structlog
import uuid_utils.compat

from sluice.backends.base import Endpoint
from sluice.billing.events import UsageEvent, encode_events
from sluice.billing.ledger import REFUSALS, Ledger
from sluice.gateway.batch import statements
from sluice.gateway.batch.output import lost_line, unexecuted_line
from sluice.gateway.tenancy.limits import Priority

#: For how long an item is its worker's without a word from it, in seconds.
LEASE_SECONDS = 15.0

#: An item whose workers were lost so many times is given up: it may be what kills them.
MOST_LOSSES = 5

#: An item: its batch, and its line in the input file.
Place = tuple[UUID, int]

_log = structlog.get_logger("sluice.batch")


@dataclass(frozen=True, slots=True)
class Item:
    """A request of a batch, claimed by a worker.

    Attributes:
        request_id: of this run, and of its usage record; each claim has a new one.
        attempts: runs before this one whose outcome was worth another.
        endpoint, key_id, team_id, priority, expires_at: of its batch; it runs as that key, and
            may run until then.
        object: the input file in the object store, of which it is a range.
        offset, length: the range, in bytes, without the end of the line.
    """

    batch_id: UUID
    line: int
    custom_id: str
    model: str
    request_id: UUID
    attempts: int
    endpoint: Endpoint
    team_id: UUID
    key_id: UUID
    priority: Priority
    expires_at: datetime
    object: str
    offset: int
    length: int

    @property
    def place(self) -> Place:
        """Which item it is."""
        return (self.batch_id, self.line)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of an item.

    Attributes:
        ok: it goes to the output file, otherwise to the error file.
        text: its line there, without the end of the line; see `output`.
        event: its usage record, which is stored together with it; None where no upstream was
            called. Its request id must be used for no other; a UUIDv7 no older than a minute
            at the event's time is found again by `/v1/usage/records?request_id=`.
    """

    batch_id: UUID
    line: int
    ok: bool
    text: str
    event: UsageEvent | None = None

    @property
    def place(self) -> Place:
        """Which item it is."""
        return (self.batch_id, self.line)


@dataclass(frozen=True, slots=True)
class Retry:
    """A run of an item that is to be followed by another.

    Attributes:
        request_id: of the run, by which it is seen that the item is still this worker's.
        seconds: until the next run, at least.
        counts: it was an attempt; otherwise nothing was tried, and the item only waits.
        event: the run's usage record.
    """

    batch_id: UUID
    line: int
    request_id: UUID
    seconds: float = 0.0
    counts: bool = True
    event: UsageEvent | None = None

    @property
    def place(self) -> Place:
        """Which item it is."""
        return (self.batch_id, self.line)


Outcome = Result | Retry


@dataclass(frozen=True, slots=True)
class Lapsed:
    """What became of items whose workers were lost.

    Attributes:
        again: so many run again.
        given_up: so many were lost too often, and are done.
    """

    again: int = 0
    given_up: int = 0


@dataclass(slots=True)
class _Group:
    """Outcomes that are settled together."""

    results: list[Result] = field(default_factory=list)
    retries: list[Retry] = field(default_factory=list)

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> _Group:
        """Each item once: of two outcomes of one item the first."""
        group, seen = cls(), set()
        for outcome in outcomes:
            if outcome.place in seen:
                continue
            seen.add(outcome.place)
            if isinstance(outcome, Result):
                group.results.append(outcome)
            else:
                group.retries.append(outcome)
        return group


class Items:
    """See the module. Every method raises asyncpg's errors and OSError while the database is away,
    and may then be called again."""

    def __init__(self, pool: asyncpg.Pool, ledger: Ledger) -> None:
        """Args:
        ledger: of the same database, where the usage records go.
        """
        self._pool = pool
        self._ledger = ledger

    async def claim(
        self, worker: UUID, wanted: Mapping[UUID, int], lease_seconds: float = LEASE_SECONDS
    ) -> list[Item]:
        """Take items that wait, in the order of their lines.

        Args:
            worker: who takes them; its own id.
            wanted: how many of which batch at most; ids that are no batches are ignored.
            lease_seconds: for how long they are the worker's unless it renews.
        """
        wanted = {batch: number for batch, number in wanted.items() if number > 0}
        if not wanted:
            return []
        ids = [uuid_utils.compat.uuid7() for _ in range(sum(wanted.values()))]
        rows = await self._pool.fetch(
            statements.CLAIM, list(wanted), list(wanted.values()), worker, ids, lease_seconds
        )
        return [_item(row) for row in rows]

    async def renew(
        self, worker: UUID, places: Collection[Place], lease_seconds: float = LEASE_SECONDS
    ) -> set[Place]:
        """Keep items for another lease.

        Args:
            worker: who claimed them.
            places: which.

        Returns:
            Those of them that are still the worker's. What is missing was done by somebody else,
            or closed with its batch: running it on is of no use.
        """
        batches, lines = [place[0] for place in places], [place[1] for place in places]
        rows = await self._pool.fetch(statements.RENEW, worker, batches, lines, lease_seconds)
        return {(row["batch_id"], row["line"]) for row in rows}

    async def settle(self, outcomes: Sequence[Outcome]) -> set[Place]:
        """Write down what came of items, all of it or nothing.

        A result counts unless the item is done already, whoever has it now. A retry counts only
        while the item is its own run's. What does not count is not charged either.

        Args:
            outcomes: of any batches. Repeating a call that may have failed is harmless.

        Returns:
            The items whose outcome counted.
        """
        group = _Group.of(outcomes)
        if not group.results and not group.retries:
            return set()
        try:
            return await self._settle(group)
        except REFUSALS as error:
            return await self._settle_one_by_one(group, error)

    async def finish(self, results: Sequence[Result]) -> set[Place]:
        """`settle` for results only."""
        return await self.settle(results)

    async def release(self, worker: UUID) -> int:
        """Give all of a worker's items back, untried; the number."""
        status = await self._pool.execute(statements.RELEASE, worker)
        return int(status.rpartition(" ")[2])

    async def reap(
        self, lease_seconds: float = LEASE_SECONDS, most_losses: int = MOST_LOSSES
    ) -> Lapsed:
        """See to items whose workers have not been heard of for a lease: they run again, or are
        given up. Any worker may do it at any time.

        After a restart of the database all workers get the time of a lease to come back.
        """
        rows = await self._pool.fetch(statements.LAPSED, lease_seconds, most_losses)
        given_up = [
            Result(row["batch_id"], row["line"], False, lost_line(_line_id(row), row["custom_id"]))
            for row in rows
            if row["losses"] >= most_losses
        ]
        if given_up:
            _log.error("items given up, their workers were lost", items=len(given_up))
            await self.settle(given_up)
        return Lapsed(len(rows) - len(given_up), len(given_up))

    async def close(
        self, batch_id: UUID, code: str, message: str, states: Sequence[str] = ("pending",)
    ) -> int:
        """End items of a batch that will not run any more.

        Args:
            code, message: what their lines in the error file say.
            states: which of them, by their state.

        Returns:
            How many there were, up to a bound: call again until there are none.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetch(statements.LOCK_BATCHES, [batch_id])
            rows = await connection.fetch(statements.CLOSING, batch_id, list(states))
            results = [
                Result(
                    batch_id,
                    row["line"],
                    False,
                    unexecuted_line(_line_id(row), row["custom_id"], code, message),
                )
                for row in rows
            ]
            if results:
                await self._write_results(connection, results)
        return len(results)

    async def _settle(self, group: _Group) -> set[Place]:
        """In one transaction. The order of locks is the same for everybody: batches by their
        ids, then items, then the ledger's sums."""
        both: Sequence[Outcome] = [*group.results, *group.retries]
        await self._ledger.prepare([each.event for each in both if each.event is not None])
        async with self._pool.acquire() as connection, connection.transaction():
            batches = sorted({outcome.batch_id for outcome in both})
            await connection.fetch(statements.LOCK_BATCHES, batches)
            counted = await self._write_results(connection, group.results)
            counted |= await self._write_retries(connection, group.retries)
            await self._ledger.add(
                connection,
                [o.event for o in both if o.event is not None and o.place in counted],
            )
        return counted

    async def _write_results(self, connection: Any, results: Sequence[Result]) -> set[Place]:
        if not results:
            return set()
        rows = await connection.fetch(
            statements.FINISH,
            [result.batch_id for result in results],
            [result.line for result in results],
            [result.ok for result in results],
            [result.text for result in results],
            *_used(results),
        )
        return {(row["batch_id"], row["line"]) for row in rows}

    async def _write_retries(self, connection: Any, retries: Sequence[Retry]) -> set[Place]:
        if not retries:
            return set()
        rows = await connection.fetch(
            statements.RETRY,
            [retry.batch_id for retry in retries],
            [retry.line for retry in retries],
            [retry.request_id for retry in retries],
            [retry.seconds for retry in retries],
            [int(retry.counts) for retry in retries],
            *_used(retries),
        )
        return {(row["batch_id"], row["line"]) for row in rows}

    async def _settle_one_by_one(self, group: _Group, error: Exception) -> set[Place]:
        """Something can't be stored: the others are; its own usage record is set aside for a
        person to look at."""
        both: list[Outcome] = [*group.results, *group.retries]
        if len(both) > 1:
            middle = len(both) // 2
            return await self.settle(both[:middle]) | await self.settle(both[middle:])
        outcome = both[0]
        if outcome.event is None:
            raise error  # its text is ours, and can be stored
        counted = await self._settle(_Group.of([replace(outcome, event=None)]))
        if counted:
            await self._ledger.reject(encode_events([outcome.event]).decode(), str(error))
        return counted


def _used(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """Costs, and tokens of input, from caches, and of output; each for all outcomes."""
    events = [outcome.event for outcome in outcomes]
    return [
        [0 if event is None else event.cost_nano_usd for event in events],
        [0 if event is None else event.input_tokens for event in events],
        [0 if event is None else event.cached_input_tokens for event in events],
        [0 if event is None else event.output_tokens for event in events],
    ]


def _line_id(row: asyncpg.Record) -> UUID:
    return cast("UUID", row["request_id"])


def _item(row: asyncpg.Record) -> Item:
    values = dict(row.items())
    return Item(**{**values, "endpoint": Endpoint(values["endpoint"])})
