"""What was used: sums by day, and single records."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from sluice.billing.prices import usd


class Totals(msgspec.Struct, kw_only=True):
    """Sums over requests. Tokens are tokens; money is USD, and exactly so in nano-USD."""

    requests: int = 0
    errors: int = 0
    cancelled: int = 0
    estimated: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0
    cost_usd: float = 0.0


class ModelTotals(Totals, kw_only=True):
    """Sums of one model, tier and key."""

    key_id: UUID
    model_used: str
    tier: str


class TierTotals(Totals, kw_only=True):
    """Sums of one tier."""

    tier: str


class RoutingTotals(msgspec.Struct, kw_only=True):
    """Sums of the requests to an `auto` alias that one model answered.

    Attributes:
        strong_cost_nano_usd, strong_cost_usd: what the same tokens would have cost at the
            strongest model that might have answered.
        saved_nano_usd, saved_usd: the difference; below 0 where an outage led to a dearer one.
    """

    alias: str
    tier: str
    model_used: str
    requests: int
    cost_nano_usd: int
    cost_usd: float
    strong_cost_nano_usd: int
    strong_cost_usd: float
    saved_nano_usd: int
    saved_usd: float


class DailyUsage(Totals, kw_only=True):
    """A team's day (UTC), with its parts.

    Attributes:
        routing: of the requests among them that went to `auto` aliases, by alias and model.
        saved_nano_usd, saved_usd: by `auto`, against sending all of those to the strong model.
    """

    team_id: UUID
    date: date
    by_model: list[ModelTotals]
    by_tier: list[TierTotals] = []
    routing: list[RoutingTotals] = []
    saved_nano_usd: int = 0
    saved_usd: float = 0.0


class RecordedDecision(msgspec.Struct, kw_only=True):
    """Why a request to an `auto` alias went where it went; see `RouteDecision`."""

    alias: str
    mode: str
    tier: str
    model: str
    tier_used: str
    score: float
    threshold: float | None
    reasons: list[str]
    scorer: str
    strong_model: str
    strong_cost_nano_usd: int


class UsageRecord(msgspec.Struct, kw_only=True):
    """One request. Times are UTC, durations milliseconds, money USD and nano-USD."""

    request_id: UUID
    time: datetime
    team_id: UUID
    key_id: UUID
    endpoint: str
    model: str
    model_used: str
    deployment: str
    tier: str
    status: str
    error_code: str | None
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    estimated: bool
    cost_usd: float
    cost_nano_usd: int
    latency_ms: float
    ttft_ms: float | None
    attempts: int
    attempt_log: str
    decision: RecordedDecision | None = None


class UsageRecords(msgspec.Struct, kw_only=True):
    """A page of records, newest first; `next` is the cursor of the following page."""

    data: list[UsageRecord]
    has_more: bool
    next: str | None


class InvalidCursor(ValueError):
    """A cursor that no page gave."""


_DECISION = ", ".join(RecordedDecision.__struct_fields__)
_COLUMNS = (
    "request_id, time, team_id, key_id, endpoint, model, model_used, deployment, tier, status,"
    " error_code, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, estimated,"
    " cost_nano_usd, latency_us, ttft_us, attempts, attempt_log,"
    f" (SELECT row_to_json(shown)::text FROM (SELECT {_DECISION} FROM route_decisions d"
    " WHERE d.time = usage_records.time AND d.request_id = usage_records.request_id) shown)"
    " AS decision"
)
_OF_ORGANISATION = "team_id IN (SELECT id FROM teams WHERE organisation_id"
_SUMS = (
    "requests",
    "errors",
    "cancelled",
    "estimated",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost_nano_usd",
)


_OWNERS = {
    "organisation": "(SELECT organisation_id FROM teams WHERE id = team_id)",
    "team": "team_id",
    "key": "key_id",
}
_THEIR_TEAMS = {
    "organisation": "SELECT id FROM teams WHERE organisation_id = ANY($1)",
    "team": "SELECT unnest($1::uuid[])",
    "key": "SELECT team_id FROM api_keys WHERE id = ANY($1)",
}


async def spent_by_gateway(
    pool: asyncpg.Pool, level: str, owners: Sequence[str], since: datetime, until: datetime
) -> dict[str, dict[str, int]]:
    """What organisations, teams or keys have spent, by the process that served it, nano-USD.

    Args:
        level: `organisation`, `team` or `key`.
        owners: their ids.
        since, until: on quarters of an hour; the second is not included.

    Returns:
        By owner, and then by process.
    """
    rows = await pool.fetch(
        f"SELECT {_OWNERS[level]}::text AS owner, gateway, sum(cost_nano_usd)::bigint AS nano"
        f" FROM spend_quarters WHERE team_id IN ({_THEIR_TEAMS[level]})"
        f" AND {_OWNERS[level]} = ANY($1) AND quarter >= $2 AND quarter < $3 GROUP BY 1, 2",
        [UUID(owner) for owner in owners],
        since,
        until,
    )
    spent: dict[str, dict[str, int]] = {}
    for row in rows:
        spent.setdefault(row["owner"], {})[row["gateway"]] = row["nano"]
    return spent


def _sums(parts: Sequence[ModelTotals]) -> dict[str, int]:
    return {name: sum(getattr(part, name) for part in parts) for name in _SUMS}


def _by_tier(parts: Sequence[ModelTotals]) -> list[TierTotals]:
    """The parts added up, in the order of the tiers' names."""
    tiers: dict[str, list[ModelTotals]] = {}
    for part in parts:
        tiers.setdefault(part.tier, []).append(part)
    added = {tier: _sums(tiers[tier]) for tier in sorted(tiers)}
    return [
        TierTotals(tier=tier, cost_usd=usd(sums["cost_nano_usd"]), **sums)
        for tier, sums in added.items()
    ]


class UsageReports:
    """Reads the ledger."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def daily(self, team_id: UUID, day: date) -> DailyUsage:
        """A team's usage on a UTC day; zeros where there was none."""
        rows = await self._pool.fetch(
            f"SELECT key_id, model_used, tier, {', '.join(_SUMS)} FROM usage_daily"
            " WHERE team_id = $1 AND date = $2 ORDER BY cost_nano_usd DESC, model_used, key_id",
            team_id,
            day,
        )
        parts = [
            ModelTotals(**dict(row.items()), cost_usd=usd(row["cost_nano_usd"])) for row in rows
        ]
        sums = _sums(parts)
        routing = await self._routing(team_id, day)
        saved = sum(part.saved_nano_usd for part in routing)
        return DailyUsage(
            team_id=team_id,
            date=day,
            by_model=parts,
            by_tier=_by_tier(parts),
            cost_usd=usd(sums["cost_nano_usd"]),
            routing=routing,
            saved_nano_usd=saved,
            saved_usd=usd(saved),
            **sums,
        )

    async def _routing(self, team_id: UUID, day: date) -> list[RoutingTotals]:
        rows = await self._pool.fetch(
            "SELECT alias, tier_used AS tier, model_used, requests, cost_nano_usd,"
            " strong_cost_nano_usd, strong_cost_nano_usd - cost_nano_usd AS saved_nano_usd"
            " FROM routing_daily WHERE team_id = $1 AND date = $2"
            " ORDER BY alias, cost_nano_usd::double precision / requests, tier, model_used",
            team_id,
            day,
        )
        return [
            RoutingTotals(
                **dict(row.items()),
                cost_usd=usd(row["cost_nano_usd"]),
                strong_cost_usd=usd(row["strong_cost_nano_usd"]),
                saved_usd=usd(row["saved_nano_usd"]),
            )
            for row in rows
        ]

    async def record(
        self, request_id: UUID, team_id: UUID | None, organisation_id: UUID | None = None
    ) -> UsageRecords:
        """The record of one request, as a page of at most one.

        Args:
            request_id: the `x-request-id` of the answer.
            team_id: only if it is this team's; None for any.
            organisation_id: only if it is one of this organisation's teams'; None for any.
        """
        try:
            around = _around(request_id)
        except OverflowError:  # no UUIDv7, hence none of ours
            return UsageRecords(data=[], has_more=False, next=None)
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM usage_records"
            " WHERE request_id = $1 AND ($2::uuid IS NULL OR team_id = $2)"
            f" AND time BETWEEN $3 AND $4 AND ($5::uuid IS NULL OR {_OF_ORGANISATION} = $5))",
            request_id,
            team_id,
            *around,
            organisation_id,
        )
        return UsageRecords(data=[_record(row) for row in rows], has_more=False, next=None)

    async def records(
        self,
        team_id: UUID | None,
        start: datetime,
        end: datetime,
        cursor: str | None,
        limit: int,
        organisation_id: UUID | None = None,
    ) -> UsageRecords:
        """Records of a time range, newest first.

        Args:
            team_id: of this team only; None for all.
            start, end: UTC, start inclusive, end exclusive.
            cursor: `next` of the page before.
            limit: records on the page.
            organisation_id: of this organisation's teams only; None for all.

        Raises:
            InvalidCursor: the cursor is none of ours.
        """
        before = _read_cursor(cursor) if cursor else (end, UUID(int=0))
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM usage_records"
            " WHERE ($1::uuid IS NULL OR team_id = $1) AND time >= $2 AND time < $3"
            f" AND (time, request_id) < ($4, $5) AND ($7::uuid IS NULL OR {_OF_ORGANISATION} = $7))"
            " ORDER BY time DESC, request_id DESC LIMIT $6",
            team_id,
            start,
            end,
            *before,
            limit + 1,
            organisation_id,
        )
        page, has_more = rows[:limit], len(rows) > limit
        return UsageRecords(
            data=[_record(row) for row in page],
            has_more=has_more,
            next=_cursor(page[-1]) if has_more else None,
        )


def day_range(day: date) -> tuple[datetime, datetime]:
    """A UTC day as start (inclusive) and end (exclusive)."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)


def _around(request_id: UUID) -> tuple[datetime, datetime]:
    """The time that a UUIDv7 carries (RFC 9562, 5.7), with a margin, so that one or two days'
    partitions are looked at and not all."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=request_id.int >> 80)
    return time - timedelta(minutes=1), time + timedelta(minutes=1)


_decision = msgspec.json.Decoder(RecordedDecision)


def _record(row: asyncpg.Record) -> UsageRecord:
    values: dict[str, Any] = dict(row.items())
    ttft, decision = values.pop("ttft_us"), values.pop("decision")
    return UsageRecord(
        cost_usd=usd(values["cost_nano_usd"]),
        latency_ms=values.pop("latency_us") / 1000,
        ttft_ms=None if ttft is None else ttft / 1000,
        decision=None if decision is None else _decision.decode(decision),
        **values,
    )


def _cursor(row: asyncpg.Record) -> str:
    text = f"{row['time'].isoformat()}|{row['request_id']}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, UUID]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        time, _, request_id = text.partition("|")
        return datetime.fromisoformat(time).astimezone(UTC), UUID(request_id)
    except (binascii.Error, ValueError, OverflowError) as error:
        raise InvalidCursor("the cursor is not one that a page gave") from error
