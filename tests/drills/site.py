"""An installation to break: Postgres, Valkey, a gateway and its billing consumer, all processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis as redis_client

from sluice.billing.events import STREAM
from sluice.migrations import migrate
from tests.drills.books import Audit, Books
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


class Site(Books):
    """See the module. The servers are running; `start` starts the rest."""

    def __init__(
        self,
        postgres: RunningServer,
        valkey: RunningServer,
        directory: Path,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(postgres.url, valkey.url, directory / "gateway-spool")
        self.postgres = postgres
        self.valkey = valkey
        self.gateway = Gateway(config or PACED, postgres.url, valkey.url, directory)
        self.billing = Process(sluice("billing"), self.gateway.env, directory / "billing.log")

    def start(self) -> None:
        """Start what is ours."""
        asyncio.run(migrate(self.postgres.url))
        self.billing.start()
        self.gateway.start()
        eventually(self._joined, 30)

    def close(self) -> None:
        """End it, without ceremony."""
        self.gateway.kill()
        self.billing.kill()

    def freeze_postgres(self, stopped: bool) -> None:
        """Stop every process of Postgres where it stands, or let them go on."""
        server = self.postgres.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in (server, *map(int, children)):
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)

    def check(self, answers: Sequence[Answer], drill: str) -> Audit:
        """See `Books.check`; and the consumer has lived through it."""
        audit = super().check(answers, drill)
        assert self.billing.running(), self.billing.log_text()[-3000:]
        return audit

    def _joined(self) -> bool:
        """Whether the consumer is there: before, it would not survive the want of a server."""
        with redis_client.Redis.from_url(self.valkey.url) as redis:
            return bool(redis.exists(STREAM) and redis.xinfo_groups(STREAM))
