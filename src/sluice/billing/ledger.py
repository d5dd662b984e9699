"""The ledger: usage events from the stream into Postgres, each request once.

Any number of consumers share the stream's group. A group of events is acknowledged only after the
transaction that stored it; whatever happens before that, it is delivered again, and the primary
key makes the second time harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from sluice.billing.events import FIELD, STREAM, RouteDecision, UsageEvent, decode_events

GROUP = "ledger"
BATCH = 512
BLOCK_MS = 1000
GATHER_SECONDS = 0.05
CLAIM_IDLE_MS = 30_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = structlog.get_logger("sluice.billing")

#: What asyncpg raises while Postgres is away. The internal error is one of them: a connection that
#: the server closes in the middle of a query can fail its clean-up in asyncpg's own state machine.
DATABASE_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    RuntimeError,  # uvloop's word for writing to a connection that the other side has reset
)

#: What an event that can't be stored raises, here or in Postgres.
REFUSALS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    ValueError,
    OverflowError,
)

_INSERT = """
WITH fresh AS (
    INSERT INTO usage_records (
        request_id, time, team_id, key_id, endpoint, model, model_used, deployment, tier,
        status, error_code, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens,
        estimated, cost_nano_usd, latency_us, ttft_us, attempts, attempt_log,
        gateway)
    SELECT * FROM unnest(
        $1::uuid[], $2::timestamptz[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[],
        $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
        $14::bigint[], $15::bigint[], $16::boolean[], $17::bigint[], $18::bigint[], $19::bigint[],
        $20::integer[], $21::text[], $22::text[])
    ON CONFLICT DO NOTHING
    RETURNING *
), quarters AS (
    INSERT INTO spend_quarters AS known (quarter, team_id, key_id, gateway, cost_nano_usd)
    SELECT date_bin('15 minutes', time, '2000-01-01 00:00+00'), team_id, key_id, gateway,
        sum(cost_nano_usd)
    FROM fresh GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (team_id, quarter, key_id, gateway) DO UPDATE SET
        cost_nano_usd = known.cost_nano_usd + excluded.cost_nano_usd
)
INSERT INTO usage_daily AS daily (
    date, team_id, key_id, model_used, tier, requests, errors, cancelled, estimated,
    input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, cost_nano_usd)
SELECT (time AT TIME ZONE 'UTC')::date, team_id, key_id, model_used, tier, count(*),
    count(*) FILTER (WHERE status = 'error'), count(*) FILTER (WHERE status = 'cancelled'),
    count(*) FILTER (WHERE estimated), sum(input_tokens), sum(cached_input_tokens),
    sum(cache_write_tokens), sum(output_tokens), sum(cost_nano_usd)
FROM fresh GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (team_id, date, key_id, model_used, tier) DO UPDATE SET
    requests = daily.requests + excluded.requests,
    errors = daily.errors + excluded.errors,
    cancelled = daily.cancelled + excluded.cancelled,
    estimated = daily.estimated + excluded.estimated,
    input_tokens = daily.input_tokens + excluded.input_tokens,
    cached_input_tokens = daily.cached_input_tokens + excluded.cached_input_tokens,
    cache_write_tokens = daily.cache_write_tokens + excluded.cache_write_tokens,
    output_tokens = daily.output_tokens + excluded.output_tokens,
    cost_nano_usd = daily.cost_nano_usd + excluded.cost_nano_usd
"""

# Of records that are there: it runs in their transaction, and after a repetition harmlessly.
_INSERT_DECISIONS = """
WITH fresh AS (
    INSERT INTO route_decisions (
        request_id, time, team_id, key_id, alias, mode, tier, model, model_used, tier_used, score,
        threshold, reasons, scorer, features, needs, tokens, conversation, strong_model,
        strong_cost_nano_usd)
    SELECT request_id, time, team_id, key_id, alias, mode, tier, model, model_used, tier_used,
        score, threshold, string_to_array(reasons, ' '), scorer, features,
        string_to_array(needs, ' '), tokens, conversation, strong_model, strong_cost
    FROM unnest(
        $1::uuid[], $2::timestamptz[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[],
        $8::text[], $9::text[], $10::text[], $11::double precision[], $12::double precision[],
        $13::text[], $14::text[], $15::bytea[], $16::text[], $17::bigint[], $18::bytea[],
        $19::text[], $20::bigint[]) AS given (
            request_id, time, team_id, key_id, alias, mode, tier, model, model_used, tier_used,
            score, threshold, reasons, scorer, features, needs, tokens, conversation,
            strong_model, strong_cost)
    ON CONFLICT DO NOTHING
    RETURNING *
)
INSERT INTO routing_daily AS daily (
    date, team_id, alias, tier_used, model_used, requests, cost_nano_usd, strong_cost_nano_usd)
SELECT (time AT TIME ZONE 'UTC')::date, fresh.team_id, alias, tier_used, fresh.model_used,
    count(*), sum(cost_nano_usd), sum(strong_cost_nano_usd)
FROM fresh JOIN usage_records AS record USING (time, request_id)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (team_id, date, alias, tier_used, model_used) DO UPDATE SET
    requests = daily.requests + excluded.requests,
    cost_nano_usd = daily.cost_nano_usd + excluded.cost_nano_usd,
    strong_cost_nano_usd = daily.strong_cost_nano_usd + excluded.strong_cost_nano_usd
"""

#: Tables with a partition for each UTC day.
_PARTITIONED = ("usage_records", "route_decisions")


class Ledger:
    """Stores events in Postgres, creating the daily partitions as they are needed."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._days: set[date] = set()

    async def store(self, events: Sequence[UsageEvent]) -> None:
        """Store events, ignoring ids already stored.

        An event that Postgres refuses is set aside in `usage_rejected`; the others are stored.

        Raises:
            asyncpg.PostgresConnectionError, OSError: the database is away; nothing is stored
                or everything, try again.
        """
        once = {event.request_id: event for event in events}
        events = [once[request_id] for request_id in sorted(once)]  # equal order: no deadlocks
        if not events:
            return
        try:
            await self._insert(events)
        except REFUSALS as error:
            if len(events) == 1:
                await self.reject(msgspec.json.encode(events[0]).decode(), str(error))
                return
            middle = len(events) // 2
            await self.store(events[:middle])
            await self.store(events[middle:])

    async def reject(self, text: str, reason: str) -> None:
        """Keep something that can't be stored, for a person to look at."""
        _log.error("usage event rejected", reason=reason)
        await self._pool.execute(
            "INSERT INTO usage_rejected (event, reason) VALUES ($1, $2)",
            storable(text),
            storable(reason),
        )

    async def prepare(self, events: Sequence[UsageEvent]) -> None:
        """See that there are the partitions that events go to: before `add`.

        Raises:
            any of `REFUSALS`: an event has no possible time.
        """
        await self._ensure_partitions({_time(event).date() for event in events})

    async def add(self, connection: Any, events: Sequence[UsageEvent]) -> None:
        """Store events as a part of a transaction that is under way; ids already stored are
        ignored. What else the transaction locks, it must have locked before.

        Args:
            connection: within its transaction, which fails with what is raised here.
            events: `prepare` has been called for them.

        Raises:
            any of `REFUSALS`: one of them can't be stored.
        """
        events = sorted(events, key=lambda each: each.request_id)
        if events:
            await connection.execute(_INSERT, *_columns([_row(event) for event in events]))
        decided = [_decision_row(each, each.decision) for each in events if each.decision]
        if decided:
            await connection.execute(_INSERT_DECISIONS, *_columns(decided))

    async def _insert(self, events: Sequence[UsageEvent]) -> None:
        await self.prepare(events)
        if not any(event.decision for event in events):  # one statement needs no transaction
            await self.add(self._pool, events)
            return
        async with self._pool.acquire() as connection, connection.transaction():
            await self.add(connection, events)

    async def _ensure_partitions(self, days: set[date]) -> None:
        for day in sorted(days - self._days):
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7363622)")
                for table in _PARTITIONED:
                    await connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {table}_{day:%Y%m%d} PARTITION OF {table} FOR"
                        f" VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
                    )
            self._days.add(day)


class LedgerConsumer:
    """Moves events from the stream to the ledger until cancelled."""

    def __init__(self, redis: Redis, ledger: Ledger, name: str, retry_seconds: float = 0.5) -> None:
        self._redis = redis
        self._ledger = ledger
        self._name = name
        self._retry_seconds = retry_seconds

    async def run(self) -> None:
        """Consume for ever; while Redis or Postgres is away, wait and try again."""
        while True:
            try:
                await self._join_group()
                while await self._take(start="0"):  # what this name took and did not finish
                    pass
                await self._follow()
            except (RedisError, *DATABASE_ERRORS) as error:
                _log.warning("usage consumer waits", error=type(error).__name__, reason=str(error))
                await asyncio.sleep(self._retry_seconds)

    async def _join_group(self) -> None:
        try:
            await self._redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _follow(self) -> None:
        """Take what comes, and now and then what consumers that died left.

        Between two transactions events gather: a commit for each would have the disk of small
        installations sync without end, and the usage stream's own syncs wait behind it.
        """
        claim_at = 0.0
        while True:
            if time.monotonic() >= claim_at:
                await self._claim_abandoned()
                claim_at = time.monotonic() + CLAIM_IDLE_MS / 1000
            await self._take(start=">")
            await asyncio.sleep(GATHER_SECONDS)

    async def _take(self, start: str) -> bool:
        """Read and store a batch, waiting a moment for one; whether there was any."""
        reply = await self._redis.xreadgroup(
            GROUP, self._name, {STREAM: start}, count=BATCH, block=BLOCK_MS
        )
        entries = _entries(reply)
        if entries:
            await self._store(entries)
        return bool(entries)

    async def _claim_abandoned(self) -> None:
        """Take over what consumers that died had taken."""
        _, entries, *_ = await self._redis.xautoclaim(
            STREAM, GROUP, self._name, min_idle_time=CLAIM_IDLE_MS, count=BATCH
        )
        if entries:
            await self._store(entries)

    async def _store(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        events: list[UsageEvent] = []
        for _, fields in entries:
            text = (fields or {}).get(FIELD, b"")
            try:
                events += decode_events(text)
            except (msgspec.DecodeError, RecursionError) as error:
                await self._ledger.reject(text.decode(errors="replace"), str(error))
        if events:
            await self._ledger.store(events)
        ids = [entry_id for entry_id, _ in entries]
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.xack(STREAM, GROUP, *ids)
            pipeline.xdel(STREAM, *ids)
            await pipeline.execute()


def storable(text: str) -> str:
    """Text as Postgres takes it: without NUL, and without halves of surrogate pairs."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of XREADGROUP's reply for one stream, in RESP2 or RESP3 form."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [entry for batch in next(iter(reply.values())) for entry in batch]
    return list(reply[0][1])


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _time(event: UsageEvent) -> datetime:
    return _EPOCH + timedelta(microseconds=event.time_us)


def _row(event: UsageEvent) -> tuple[Any, ...]:
    return (
        event.request_id,
        _time(event),
        event.team_id,
        event.key_id,
        storable(event.endpoint),
        storable(event.model),
        storable(event.model_used),
        storable(event.deployment),
        event.tier,
        event.status,
        None if event.error_code is None else storable(event.error_code),
        event.input_tokens,
        event.cached_input_tokens,
        event.cache_write_tokens,
        event.output_tokens,
        event.estimated,
        event.cost_nano_usd,
        event.latency_us,
        event.ttft_us,
        event.attempts,
        storable(event.attempt_log),
        storable(event.gateway),
    )


def _decision_row(event: UsageEvent, decision: RouteDecision) -> tuple[Any, ...]:
    return (
        event.request_id,
        _time(event),
        event.team_id,
        event.key_id,
        storable(decision.alias),
        decision.mode,
        storable(decision.tier),
        storable(decision.model),
        storable(event.model_used),
        storable(decision.tier_used),
        decision.score,
        decision.threshold,
        " ".join(map(storable, decision.reasons)),  # words without spaces
        storable(decision.scorer),
        decision.features,
        " ".join(map(storable, decision.needs)),
        decision.tokens,
        decision.conversation,
        storable(decision.strong_model),
        event.strong_cost(decision),
    )
