"""An installation to break: Postgres, Valkey, a gateway and its billing consumer, all processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import redis as redis_client

from sluice.billing.events import STREAM
from sluice.billing.ledger import GROUP
from sluice.migrations import migrate
from tests.drills.load import Answer
from tests.harness.gateway import Gateway, Process, sluice
from tests.harness.polling import eventually
from tests.servers import RunningServer

DRAIN_SECONDS = 3

#: Models of every site: `paced` streams for several hundred ms, `endless` for longer than a drain.
PACED: dict[str, Any] = {
    "providers": {
        "paced": {"kind": "simulator", "ttft_ms": 30, "itl_ms": 15},
        "endless": {"kind": "simulator", "ttft_ms": 30, "itl_ms": 1000},
    },
    "models": [
        {
            "name": name,
            "context_length": 8192,
            "capabilities": ["chat", "completions", "embeddings"],
            "price": {"input_per_mtok": "3", "output_per_mtok": "15"},
            "deployments": [{"provider": name, "model": "sim"}],
        }
        for name in ("paced", "endless")
    ],
    "server": {"drain_seconds": DRAIN_SECONDS},
}


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


class Site:
    """See the module. The servers are running; `start` starts the rest."""

    def __init__(
        self,
        postgres: RunningServer,
        valkey: RunningServer,
        directory: Path,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.postgres = postgres
        self.valkey = valkey
        self.gateway = Gateway(config or PACED, postgres.url, valkey.url, directory)
        self.billing = Process(sluice("billing"), self.gateway.env, directory / "billing.log")
        self.spool = directory / "gateway-spool"

    def start(self) -> None:
        """Start what is ours."""
        asyncio.run(migrate(self.postgres.url))
        self.gateway.start()
        self.billing.start()
        eventually(self._joined, 30)

    def close(self) -> None:
        """End it, without ceremony."""
        self.gateway.kill()
        self.billing.kill()

    def spooled(self) -> int:
        """Bytes of events in the spool."""
        return sum(path.stat().st_size for path in self.spool.glob("*") if path.exists())

    def queued(self) -> int:
        """Entries of the usage stream that the ledger doesn't have yet."""
        with redis_client.Redis.from_url(self.valkey.url) as redis:
            length: Any = redis.xlen(STREAM)
            return int(length)

    def taken(self) -> int:
        """Entries that a consumer has taken and not finished."""
        with redis_client.Redis.from_url(self.valkey.url) as redis:
            pending: Any = redis.xpending(STREAM, GROUP)
            return int(pending["pending"])

    def valkey_command(self, *words: str) -> Any:
        """What Valkey answers to a command."""
        with redis_client.Redis.from_url(self.valkey.url) as redis:
            return redis.execute_command(*words)

    def _joined(self) -> bool:
        """Whether the consumer is there: before, it would not survive the want of a server."""
        with redis_client.Redis.from_url(self.valkey.url) as redis:
            return bool(redis.exists(STREAM) and redis.xinfo_groups(STREAM))

    def settle(self, seconds: float = 30) -> None:
        """Until every event is in the ledger."""
        eventually(lambda: self.spooled() == 0 and self.queued() == 0, seconds, 0.1)

    def freeze_postgres(self, stopped: bool) -> None:
        """Stop every process of Postgres where it stands, or let them go on."""
        server = self.postgres.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in (server, *map(int, children)):
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)

    def query(self, sql: str) -> list[asyncpg.Record]:
        """Rows of a query."""
        return asyncio.run(_fetch(self.postgres.url, sql))

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
        assert self.billing.running(), self.billing.log_text()[-3000:]
        audit = self.audit(answers)
        print(f"\n{drill}: {audit}")
        assert audit.complete > 0
        assert not audit.lost
        assert not audit.doubled
        assert not audit.wrong
        assert not self.query("SELECT event, reason FROM usage_rejected")
        assert self.query(_SUMS_OF_DAYS) == self.query(_SUMS_OF_RECORDS)
        return audit


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
