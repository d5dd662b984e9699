"""The books of an installation: what clients saw, against what the ledger has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import redis as redis_client

from sluice.billing.events import STREAM
from sluice.billing.ledger import GROUP
from tests.drills.load import Answer
from tests.harness.polling import eventually


@dataclass(frozen=True, slots=True)
class Audit:
    """The books: what clients saw against what the ledger has.

    Attributes:
        sent: requests.
        complete: answers that clients saw complete.
        rows: rows in the ledger.
        lost: complete answers without a row.
        doubled: request ids with more than one row.
        wrong: complete answers whose row has another status or other token counts.
    """

    sent: int
    complete: int
    rows: int
    lost: list[str]
    doubled: list[str]
    wrong: list[str]

    def __str__(self) -> str:
        return (
            f"{self.sent} requests, {self.complete} seen complete, {self.rows} rows,"
            f" {len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.wrong)} wrong"
        )


def sizes(paths: Iterable[Path]) -> list[int]:
    """Bytes of files, of those that are still there: a gateway removes and renames its own."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return found


#: A consumer that will never come back.
LOST = "lost"


class Books:
    """Reads the ledger, the usage stream and the spool of an installation."""

    def __init__(self, database_url: str, redis_url: str, spool: Path) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.spool = spool

    def spooled(self) -> int:
        """Bytes of events in the spool."""
        return sum(sizes(self.spool.glob("*")))

    def queued(self) -> int:
        """Entries of the usage stream that the ledger doesn't have yet."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            length: Any = redis.xlen(STREAM)
            return int(length)

    def abandon_entries(self, idle_ms: int) -> int:
        """Take what is queued under another consumer's name, long ago; gives the number."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            reply: Any = redis.xreadgroup(GROUP, LOST, {STREAM: ">"}, count=1000)
            batches = reply.values() if isinstance(reply, dict) else [part[1] for part in reply]
            ids = [entry[0] for entries in batches for entry in _flat(entries)]
            redis.xclaim(STREAM, GROUP, LOST, 0, ids, idle=idle_ms)
            return len(ids)

    def abandoned(self) -> int:
        """Entries that the other consumer took and that nobody took over."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            return len(redis.xpending_range(STREAM, GROUP, "-", "+", 1000, consumername=LOST))

    def taken(self) -> int:
        """Entries that a consumer has taken and not finished."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            pending: Any = redis.xpending(STREAM, GROUP)
            return int(pending["pending"])

    def valkey_command(self, *words: str) -> Any:
        """What Valkey answers to a command."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            return redis.execute_command(*words)

    def settle(self, seconds: float = 30) -> None:
        """Until every event is in the ledger."""
        eventually(lambda: self.spooled() == 0 and self.queued() == 0, seconds, 0.1)

    def query(self, sql: str) -> list[asyncpg.Record]:
        """Rows of a query."""
        return asyncio.run(_fetch(self.database_url, sql))

    def audit(self, answers: Sequence[Answer]) -> Audit:
        """Compare the books, once every event has arrived."""
        rows = self.query(
            "SELECT request_id::text, status, input_tokens, output_tokens, estimated"
            " FROM usage_records"
        )
        count = Counter(row["request_id"] for row in rows)
        by_id = {row["request_id"]: row for row in rows}
        complete = [answer for answer in answers if answer.complete]
        return Audit(
            sent=len(answers),
            complete=len(complete),
            rows=len(rows),
            lost=[str(answer.request_id) for answer in complete if answer.request_id not in by_id],
            doubled=[request_id for request_id, times in count.items() if times > 1],
            wrong=[
                f"{answer} has {by_id[answer.request_id]}"
                for answer in complete
                if answer.request_id in by_id and not _agree(answer, by_id[answer.request_id])
            ],
        )

    def check(self, answers: Sequence[Answer], drill: str) -> Audit:
        """Settle, audit, and insist: nothing lost, doubled, wrong or rejected, and sums agree."""
        self.settle()
        audit = self.audit(answers)
        print(f"\n{drill}: {audit}")
        assert audit.complete > 0
        assert not audit.lost
        assert not audit.doubled
        assert not audit.wrong
        assert not self.query("SELECT event, reason FROM usage_rejected")
        assert self.query(_SUMS_OF_DAYS) == self.query(_SUMS_OF_RECORDS)
        return audit


def _flat(entries: Any) -> Any:
    """RESP3 replies have one level more than RESP2's."""
    return entries if entries and isinstance(entries[0], tuple) else entries[0]


_SUMS_OF_DAYS = """
SELECT sum(requests)::bigint, sum(errors)::bigint, sum(cancelled)::bigint,
    sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cost_nano_usd)::bigint
FROM usage_daily
"""
_SUMS_OF_RECORDS = """
SELECT count(*), count(*) FILTER (WHERE status = 'error'),
    count(*) FILTER (WHERE status = 'cancelled'),
    sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cost_nano_usd)::bigint
FROM usage_records
"""


def _agree(answer: Answer, row: asyncpg.Record) -> bool:
    return (
        row["status"] == "ok"
        and not row["estimated"]
        and (row["input_tokens"], row["output_tokens"]) == answer.tokens
    )


async def _fetch(url: str, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(sql)
        return rows
    finally:
        await connection.close()
