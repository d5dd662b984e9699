"""Callbacks: a batch that has ended is told to the URL that its team gave.

Deliveries follow Standard Webhooks (https://www.standardwebhooks.com): signed, at least once, the
same id each time. The body is an event as OpenAI's webhooks have it, so that their SDKs'
`webhooks.unwrap` reads it. Where a delivery stands is a part of the batch's record, its `callback`:

    {"url": …,                    given by the team; the rest is written here
     "deliveries": [{"at", "status_code", "error"}, …],
     "next_at":                   seconds since the epoch; absent before the first delivery
     "ended": "delivered" | "refused" | "gave_up"}

Any number of processes deliver. A claim moves `next_at` on, so that what a killed process had
claimed is delivered by another. Each process has one delivery of a team under way at a time: a
team whose receiver is slow waits for itself only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import structlog
from standardwebhooks import Webhook

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.gateway.batch.callback_secrets import CallbackSecrets
from sluice.gateway.egress import Egress, EgressFailed, EgressRefused

#: Seconds to wait after each delivery that failed, as Standard Webhooks proposes them: about
#: three days in all.
BACKOFF_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)

#: How much a wait varies, so that the callbacks of a receiver that was away don't come at once.
JITTER = 0.1

#: For how long a claimed delivery is left to the process that claimed it, in seconds. Longer than
#: any delivery may take (see `EgressPolicy.seconds`).
LEASE_SECONDS = 600

#: Deliveries that one process has under way.
CONCURRENT = 32

#: How often it is looked for batches that have ended, in seconds.
POLL_SECONDS = 1.0

_log = structlog.get_logger("sluice.callbacks")

Ended = Literal["delivered", "refused", "gave_up"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What is to be delivered.

    Attributes:
        record: the batch's `callback`.
        status: that the batch ended with.
        ended_at: when it did.
    """

    batch_id: UUID
    team_id: UUID
    record: dict[str, Any]
    status: str
    ended_at: datetime
    total: int
    completed: int
    failed: int
    metadata: dict[str, str] | None

    @property
    def event_id(self) -> str:
        """The same for each delivery, so that receivers know a repetition."""
        return f"evt_{self.batch_id.hex}"

    def body(self) -> bytes:
        """The event; the same bytes for each delivery."""
        return msgspec.json.encode(
            {
                "id": self.event_id,
                "object": "event",
                "created_at": int(self.ended_at.timestamp()),
                "type": f"batch.{self.status}",
                "data": {
                    "id": f"batch_{self.batch_id.hex}",
                    "status": self.status,
                    "request_counts": {
                        "total": self.total,
                        "completed": self.completed,
                        "failed": self.failed,
                    },
                    "metadata": self.metadata,
                },
            }
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one delivery went.

    Attributes:
        at: when it ended, seconds since the epoch.
        status_code: of the receiver's answer; None where none came.
        error: why none came.
        refused: the URL must not be fetched at all.
    """

    at: int
    status_code: int | None = None
    error: str | None = None
    refused: bool = False

    @property
    def ended(self) -> Ended | None:
        """Whether it settles the matter: the receiver has it, or wants none, or may get none."""
        if self.refused:
            return "refused"
        if self.status_code is None:
            return None
        if 200 <= self.status_code < 300:
            return "delivered"
        return "gave_up" if self.status_code == 410 else None


def after(record: dict[str, Any], delivery: Delivery, draw: float) -> dict[str, Any]:
    """A batch's `callback` after a delivery.

    Args:
        record: as it was.
        delivery: how it went.
        draw: a number in [0, 1), which varies the wait.
    """
    noted = {"at": delivery.at, "status_code": delivery.status_code, "error": delivery.error}
    deliveries = [*record.get("deliveries", []), noted]
    ended = delivery.ended
    if ended is None and len(deliveries) > len(BACKOFF_SECONDS):
        ended = "gave_up"
    known = {"url": record["url"], "deliveries": deliveries}
    if ended is not None:
        return {**known, "ended": ended}
    wait = BACKOFF_SECONDS[len(deliveries) - 1] * (1 + JITTER * draw)
    return {**known, "next_at": delivery.at + round(wait)}


_DUE = """callback IS NOT NULL AND NOT callback ? 'ended'
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
    AND coalesce((callback ->> 'next_at')::bigint, 0) <= $1"""

# Of each team one, and none of the teams that have one under way here.
_CLAIM = f"""
UPDATE batches SET callback = callback || jsonb_build_object('next_at', $1::bigint + $2)
WHERE id IN (
    SELECT b.id FROM batches b
    WHERE {_DUE} AND b.id IN (
        SELECT DISTINCT ON (team_id) id FROM batches
        WHERE {_DUE} AND team_id <> ALL ($3::uuid[])
        ORDER BY team_id, coalesce((callback ->> 'next_at')::bigint, 0), id
    )
    LIMIT $4 FOR UPDATE SKIP LOCKED
)
RETURNING id, team_id, callback, status, total, completed, failed, metadata,
    coalesce(completed_at, failed_at, expired_at, cancelled_at, created_at) AS ended_at
"""


class CallbackDeliverer:
    """Delivers; see the module."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        egress: Egress,
        secrets: CallbackSecrets,
        observe: Callable[[str], None] = lambda outcome: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Args:
        pool: the database.
        egress: fetches what may be fetched. It must follow no redirects.
        secrets: sign.
        observe: is told how each delivery went: `delivered`, `failed`, `refused` or `gave_up`.
        clock: the time now.
        sleep: waits for so many seconds.
        """
        self._pool = pool
        self._egress = egress
        self._secrets = secrets
        self._observe = observe
        self._clock = clock
        self._sleep = sleep
        self._under_way: dict[UUID, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Deliver until cancelled."""
        away = False
        try:
            while True:
                try:
                    claimed = await self.deliver_due()
                    away = False
                except DATABASE_ERRORS as error:
                    if not away:
                        _log.warning("callbacks can't be looked for", error=type(error).__name__)
                    claimed, away = 0, True
                if not claimed:
                    await self._sleep(POLL_SECONDS)
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def deliver_due(self) -> int:
        """Begin the deliveries that are due, as many as there is room for.

        Returns:
            How many were begun.

        Raises:
            asyncpg.PostgresError, OSError: the database can't be asked.
        """
        room = CONCURRENT - len(self._under_way)
        if room <= 0:
            return 0
        now = int(self._clock().timestamp())
        rows = await self._pool.fetch(_CLAIM, now, LEASE_SECONDS, list(self._under_way), room)
        for row in rows:
            notice = _notice(row)
            task = asyncio.create_task(self._deliver(notice), name="callback")
            self._under_way[notice.team_id] = task
        return len(rows)

    async def idle(self) -> None:
        """Wait for the deliveries that are under way."""
        await asyncio.gather(*self._under_way.values())

    async def _deliver(self, notice: Notice) -> None:
        try:
            delivery = await self._send(notice)
            record = after(notice.record, delivery, random.random())
            await self._pool.execute(
                "UPDATE batches SET callback = $2 WHERE id = $1",
                notice.batch_id,
                msgspec.json.encode(record).decode(),
            )
            self._observe(record.get("ended", "failed"))
            if delivery.ended != "delivered":
                _log.info(
                    "callback not delivered",
                    batch_id=f"batch_{notice.batch_id.hex}",
                    team_id=str(notice.team_id),
                    status_code=delivery.status_code,
                    error=delivery.error,
                    ended=record.get("ended"),
                )
        except DATABASE_ERRORS as error:  # it comes again when its claim has lapsed
            _log.warning("callback can't be noted", error=type(error).__name__)
        finally:
            del self._under_way[notice.team_id]

    async def _send(self, notice: Notice) -> Delivery:
        now = self._clock()
        body = notice.body()
        signatures = [
            Webhook(secret).sign(notice.event_id, now, body.decode())
            for secret in await self._secrets.signing(notice.team_id, now)
        ]
        headers = {
            "content-type": "application/json",
            "webhook-id": notice.event_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        status: int | None = None
        error: str | None = None
        refused = False
        try:
            status = (
                await self._egress.request("POST", notice.record["url"], headers, body)
            ).status
        except EgressRefused as refusal:
            error, refused = str(refusal), True
        except EgressFailed as failure:
            error = str(failure)
        return Delivery(int(self._clock().timestamp()), status, error, refused)


def _notice(row: asyncpg.Record) -> Notice:
    metadata = row["metadata"]
    return Notice(
        batch_id=row["id"],
        team_id=row["team_id"],
        record=msgspec.json.decode(row["callback"]),
        status=row["status"],
        ended_at=row["ended_at"],
        total=row["total"],
        completed=row["completed"],
        failed=row["failed"],
        metadata=None if metadata is None else msgspec.json.decode(metadata),
    )
