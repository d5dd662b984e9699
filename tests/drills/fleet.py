"""Several gateways that share their limits, with a judge behind them; all of them processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import redis as redis_client

from sluice.migrations import migrate
from tests.drills.books import Books, sizes
from tests.drills.judge import Seen, seen
from tests.harness.gateway import Gateway, Process, free_port, sluice, start_together
from tests.harness.limited import Limited
from tests.servers import RunningServer

#: Models: the second is for upstream errors, so that these rest nobody else's provider.
STEADY, MOODY = "steady", "moody"

#: USD per million tokens.
PRICE = {"input_per_mtok": "0.05", "output_per_mtok": "10"}
NANO_PER_TOKEN = (50, 10_000)

MAX_BODY_BYTES = 100_000

#: Debian's place for it. The wall clock of a gateway that runs with it can be set.
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def fleet_config(url: str, **admission: Any) -> dict[str, Any]:
    """A gateway's configuration, before a judge."""
    provider = {"kind": "openai", "api_key": "any", "base_url": f"{url}/v1"}
    return {
        "providers": {STEADY: provider, MOODY: provider},
        "models": [
            {
                "name": name,
                "context_length": 8192,
                "capabilities": ["chat"],
                "price": PRICE,
                "deployments": [{"provider": name, "model": name}],
            }
            for name in (STEADY, MOODY)
        ],
        "server": {"drain_seconds": 3, "max_body_bytes": MAX_BODY_BYTES},
        "dispatch": {"attempts": 1, "breaker": {"min_calls": 1_000_000}},
        "admission": admission,
    }


class Clock:
    """The wall clock of one gateway, as far as it differs from everybody's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set("+0")

    def set(self, offset: str) -> None:
        """Step it, such as by `+5h`."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(offset)
        fresh.replace(self._file)

    def environment(self) -> dict[str, str]:
        """What a process needs to go by it."""
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class Fleet(Books):
    """See the module. The servers are running; `start` starts the rest."""

    def __init__(
        self,
        postgres: RunningServer,
        valkey: RunningServer,
        directory: Path,
        gateways: int = 4,
        **admission: Any,
    ) -> None:
        super().__init__(postgres.url, valkey.url, directory)
        port = free_port()
        self.judge_url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.drills.judge", str(port)]
        self.judge = Process(command, {}, directory / "judge.log")
        self.valkey = valkey
        self.gateways = [
            Gateway(
                fleet_config(self.judge_url, **admission),
                postgres.url,
                valkey.url,
                directory,
                f"gateway-{number}",
            )
            for number in range(gateways)
        ]
        self.billing = Process(sluice("billing"), self.gateways[0].env, directory / "billing.log")
        self.limited = Limited(*self.gateways)
        self.clock = Clock(directory / "clock")
        if FAKETIME.exists():
            self.gateways[-1].env.update(self.clock.environment())

    def start(self) -> None:
        """Start what is ours."""
        asyncio.run(migrate(self.database_url))
        self.judge.start()
        self.billing.start()
        start_together(self.gateways)

    def close(self) -> None:
        """End it, without ceremony."""
        for process in (*self.gateways, self.billing, self.judge):
            process.kill()

    def restart(self, number: int) -> None:
        """Start a gateway that has ended, without waiting for it."""
        Process.start(self.gateways[number])

    def cut_redis(self) -> None:
        """Break every connection to Valkey."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def spooled(self) -> int:
        """Bytes of events in all spools."""
        return sum(sizes(self.spool.glob("*-spool/*")))

    def seen(self) -> list[Seen]:
        """What the judge has seen."""
        return asyncio.run(seen(self.judge_url))

    def held(self) -> dict[str, int]:
        """Slots and money that Redis takes for held, by key; zeros are left out."""
        found = {}
        with redis_client.Redis.from_url(self.redis_url) as redis:
            for kind, field in (("s", "S"), ("b", "held")):
                for key in redis.scan_iter(f"sluice:q:{kind}:*"):
                    value = int(redis.hget(key, field) or 0)
                    if value:
                        found[key.decode()] = value
        return found

    def in_the_minute(self, level: str, owner: str) -> tuple[int, int]:
        """Requests and tokens that Redis takes for let in within the minute."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            requests, tokens = redis.hmget(f"sluice:q:s:{level}:{owner}", "R", "T")
        return int(requests or 0), int(tokens or 0)

    def ledger(self, column: str, value: str) -> int:
        """What the ledger has of a key or a team (`key_id`, `team_id`), nano-USD."""
        rows = self.query(
            f"SELECT coalesce(sum(cost_nano_usd), 0)::bigint AS nano FROM usage_records"
            f" WHERE {column} = '{value}'"
        )
        return int(rows[0]["nano"])

    def counted(self, owner: str) -> int:
        """What Redis takes for spent, in the one period of the one budget of an owner."""
        with redis_client.Redis.from_url(self.redis_url) as redis:
            spent = [
                int(redis.hget(key, "spent") or 0)
                for key in redis.scan_iter(f"sluice:q:b:*:{owner}:*")
                if int(redis.hget(key, "spent") or 0)
            ]
        assert len(spent) <= 1, "of one period only"
        return sum(spent)


def nano_usd(call: Seen) -> int:
    """What a call costs."""
    return call.prompt * NANO_PER_TOKEN[0] + call.completion * NANO_PER_TOKEN[1]
