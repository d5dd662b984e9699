"""Sluice under test, with everything switched on that a deployment has.

Only `sluice serve` is on the gateway's core. Postgres, Valkey and the billing
consumer share the other core with the mock and the load: in a deployment they
are on other machines, and on the gateway's core they would be counted as its
work. They do slow the mock and the load down, which is to Sluice's disadvantage.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.errors import BenchError
from bench.machine import GATEWAY_CORE, OTHER_CORE, free_port
from bench.process import Server
from bench.subject import Lane, Notes, Subject, UsageCheck
from bench.wrk import Endpoint
from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.server import EmbeddedServer
from sluice.gateway.embedded.valkey import EmbeddedValkey

_KEY = "sk-bench-first-team-0123456789abcdef0123456789"
_ADMIN_KEY = "sk-bench-admin-0123456789abcdef0123456789"
_SECONDS_FOR_USAGE = 120.0
_SECONDS_BETWEEN_LOOKS = 0.5
#: A count that hasn't changed for so many looks is final.
_LOOKS_UNCHANGED = 4

#: What the labels of the rows call the two ways through Sluice.
_MODELS = {
    "bench-vllm": "Sluice, vLLM pool",
    "bench-openai": "Sluice, OpenAI provider",
    "bench-anthropic": "Sluice, Anthropic, translated",
}


class State:
    """The Postgres, the Valkey and the billing consumer of a whole benchmark run."""

    def __init__(self, program: str, logs: Path) -> None:
        self._program = program
        self._logs = logs
        self._servers: list[Server] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.env: dict[str, str] = {}

    @property
    def running(self) -> bool:
        """Whether the servers are there."""
        return bool(self._servers)

    def start(self) -> None:
        """Start the servers empty, lay the schema, and begin to consume usage events."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sluice-bench-")
        home = Path(self._directory.name)
        # Postgres runs as a user of its own under root and has to get in.
        home.chmod(0o711)
        postgres, valkey = EmbeddedPostgres(home), EmbeddedValkey(home)
        for server in (postgres, valkey):
            self._serve(server)
        self.env = {
            "SLUICE_DATABASE_URL": postgres.url,
            "SLUICE_REDIS_URL": valkey.url,
            "SLUICE_SPOOL_DIR": str(home / "spool"),
            "SLUICE_FILES_DIR": str(home / "files"),
            "SLUICE_ADMIN_KEY": _ADMIN_KEY,
            "SLUICE_BOOTSTRAP_KEY": _KEY,
            "BENCH_KEY": _KEY,
        }
        self._migrate()
        command = [self._program, "billing"]
        log = self._logs / "billing.log"
        self._servers.append(Server("billing", command, log=log, core=OTHER_CORE, env=self.env))

    def stop(self) -> None:
        """Stop the servers, last first, and throw their data away."""
        while self._servers:
            self._servers.pop().stop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def check_alive(self) -> None:
        """Fail if one of the servers has ended."""
        for server in self._servers:
            server.check_alive()

    def _serve(self, server: EmbeddedServer) -> None:
        server.prepare()
        log = self._logs / f"{server.name}.log"
        started = Server(
            server.name,
            server.command(),
            log=log,
            core=OTHER_CORE,
            env=server.env,
            user=server.user,
            stop_signal=server.stop_signal,
        )
        self._servers.append(started)
        asyncio.run(server.ready(60))

    def _migrate(self) -> None:
        command = [self._program, "migrate"]
        with (self._logs / "migrate.log").open("w+") as log:
            done = subprocess.run(
                command,
                check=False,
                env={**os.environ, **self.env},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            if done.returncode != 0:
                log.seek(0)
                raise BenchError(f"sluice migrate failed:\n{log.read()}")


@contextmanager
def installation() -> Iterator[tuple[str, State, Path]]:
    """What a measurement of its own begins with: the program, its running servers, and a directory
    for logs and files, which all end with the block."""
    program = str(Path(sys.executable).parent / "sluice")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-logs-") as directory:
        logs = Path(directory)
        state = State(program, logs)
        state.start()
        try:
            yield program, state, logs
        finally:
            state.stop()


class Sluice(Subject):
    """`sluice serve` with a model on a vLLM pool, on an OpenAI provider, on Anthropic."""

    name = "sluice"
    lanes = len(_MODELS)

    def __init__(self, program: str, logs: Path) -> None:
        self._program = program
        self._logs = logs
        self._state = State(program, logs)
        self._servers: list[Server] = []
        self._first_day = _today()
        self._before = (0, 0)
        #: Of every team that the loads go by.
        self._keys = [_KEY]
        self._base = ""

    def notes(self) -> Notes:
        """See `Subject.notes`."""
        command = [self._program, "--version"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return Notes(done.stdout.strip().rpartition(" ")[2], "keys and durable usage on")

    def start(self, upstream: str) -> list[Lane]:
        """See `Subject.start`."""
        if not self._state.running:
            self._state.start()
        self._base = self._serve("sluice", _config(upstream))
        lanes = self._open_lanes(upstream)
        self._before = self._settled_counts(0)
        return lanes

    def stop(self) -> None:
        """See `Subject.stop`."""
        while self._servers:
            self._servers.pop().stop()

    def close(self) -> None:
        """See `Subject.close`."""
        self._state.stop()

    def resident_bytes(self) -> int | None:
        """See `Subject.resident_bytes`."""
        return self._servers[0].resident_bytes() if self._servers else None

    def check_usage(self, finished: int, in_flight_at_most: int) -> UsageCheck | None:
        """See `Subject.check_usage`."""
        self._state.check_alive()
        started = time.monotonic()
        requests, errors = self._before
        after = self._settled_counts(requests + finished)
        self._before = after
        return UsageCheck(
            finished=finished,
            in_flight_at_most=in_flight_at_most,
            recorded=after[0] - requests,
            errors=after[1] - errors,
            seconds_to_arrive=round(time.monotonic() - started, 1),
        )

    def _open_lanes(self, upstream: str) -> list[Lane]:
        return [Lane(label, Endpoint(self._base, model, _KEY)) for model, label in _MODELS.items()]

    def _serve(self, name: str, config: dict[str, object]) -> str:
        """Start a gateway; gives its address once it answers."""
        port = free_port()
        file = self._logs / f"{name}.json"
        # JSON is YAML too.
        file.write_text(json.dumps(config))
        command = [self._program, "serve", "--config", str(file)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        log = self._logs / f"{name}.log"
        base = f"http://127.0.0.1:{port}"
        server = Server(name, command, log=log, core=GATEWAY_CORE, env=self._state.env)
        self._servers.append(server)
        server.wait_until_answering(f"{base}/v1/models", _authorization(_KEY))
        return base

    def _settled_counts(self, at_least: int) -> tuple[int, int]:
        """The counts of requests and errors, once they are enough and no longer change."""
        deadline = time.monotonic() + _SECONDS_FOR_USAGE
        counts = self._counts()
        unchanged = 0
        while unchanged < _LOOKS_UNCHANGED or counts[0] < at_least:
            if time.monotonic() > deadline:
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            before, counts = counts, self._counts()
            unchanged = unchanged + 1 if counts == before else 0
        return counts

    def _counts(self) -> tuple[int, int]:
        """Requests and errors of the benchmark's teams since the run began."""
        requests = errors = 0
        for key in self._keys:
            day = self._first_day
            while day <= _today():
                usage = _call(f"{self._base}/v1/usage?date={day.isoformat()}", key)
                requests += int(str(usage["requests"]))
                errors += int(str(usage["errors"]))
                day += timedelta(days=1)
        return requests, errors


class SluiceAuto(Sluice):
    """The same gateway, asked for a model by name and for `auto`, which chooses one of two that are
    at the same upstream."""

    name = "sluice-auto"
    lanes = 2
    paired = True
    holds = False

    def _open_lanes(self, upstream: str) -> list[Lane]:
        return [
            Lane(BY_NAME, Endpoint(self._base, "bench-vllm", _KEY)),
            Lane(BY_AUTO, Endpoint(self._base, "auto", _KEY)),
        ]


class SluicePool(Sluice):
    """The same gateway before one vLLM by itself, and before a pool that has only this one: what
    placement, queue and bounds cost."""

    name = "sluice-pool"
    lanes = 2
    paired = True
    holds = False

    def _open_lanes(self, upstream: str) -> list[Lane]:
        config = _config(upstream)
        pool = {"kind": "vllm", "replicas": [upstream], "pool": {"max_running": 10_000}}
        config["providers"] = {**config["providers"], "many": pool}
        config["models"] = [*config["models"], _model("bench-pool", "many")]
        base = self._serve("sluice-pool", config)
        return [
            Lane(SINGLE, Endpoint(base, "bench-vllm", _KEY)),
            Lane(POOLED, Endpoint(base, "bench-pool", _KEY)),
        ]


class SluiceLimits(Sluice):
    """The same gateway without limits, and with every limit at every level: capacity taken ahead,
    and every request asked for."""

    name = "sluice-limits"
    lanes = 3
    paired = True
    holds = False

    def __init__(self, program: str, logs: Path) -> None:
        super().__init__(program, logs)
        self._limited: str | None = None

    def _open_lanes(self, upstream: str) -> list[Lane]:
        exact = self._serve("sluice-exact", {**_config(upstream), "admission": {"mode": "exact"}})
        if self._limited is None:
            self._limited = self._make_limited_key()
            self._keys.append(self._limited)
        return [
            Lane(UNLIMITED, Endpoint(self._base, "bench-vllm", _KEY)),
            Lane(LEASED, Endpoint(self._base, "bench-vllm", self._limited)),
            Lane(EXACT, Endpoint(exact, "bench-vllm", self._limited)),
        ]

    def _make_limited_key(self) -> str:
        """A key of a team of an organisation, each with limits that bind nobody here."""
        _call(f"{self._base}/admin/organisations", _ADMIN_KEY, {"name": "bench", **_LIMITS})
        return make_team_key(self._base, "limited", {"organisation": "bench", **_LIMITS}, _LIMITS)


def make_team_key(
    base: str,
    team: str,
    terms: Mapping[str, object] = MappingProxyType({}),
    key_terms: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """A key of a new team, once a gateway accepts it.

    Args:
        base: address of the gateway.
        team: its name.
        terms, key_terms: of the team, and of the key.
    """
    admin = f"{base}/admin/teams"
    _call(admin, _ADMIN_KEY, {"name": team, **terms})
    made = _call(f"{admin}/{team}/keys", _ADMIN_KEY, {"name": "bench", **key_terms})
    key = str(made["key"])
    deadline = time.monotonic() + 10
    while not _accepted(f"{base}/v1/models", key):
        if time.monotonic() > deadline:
            raise BenchError(f"the key of {team} is not accepted")
        time.sleep(0.1)
    return key


BY_NAME = "Sluice, a model by name"
BY_AUTO = "Sluice, auto"
SINGLE = "Sluice, one vLLM"
POOLED = "Sluice, a pool of one"

UNLIMITED = "Sluice, no limits"
LEASED = "Sluice, limits, leased"
EXACT = "Sluice, limits, exact"


@dataclass(frozen=True)
class Comparison:
    """What to say of lanes that are compared with a baseline: a title, a text, their labels."""

    title: str
    text: str
    labels: tuple[str, ...]


#: By the label of the baseline.
COMPARISONS = {
    BY_NAME: Comparison(
        "What `auto` costs",
        "A model that `auto` chooses for each request, beside one asked for by its name.",
        (BY_AUTO,),
    ),
    SINGLE: Comparison(
        "What a pool costs",
        "A pool that has only one replica, beside the same replica by itself.",
        (POOLED,),
    ),
    UNLIMITED: Comparison(
        "What limits cost",
        "Every limit (requests, tokens, concurrency, two budgets) at each of three levels, beside"
        " the same gateway with a key that has none.",
        (LEASED, EXACT),
    ),
}

_LIMITS = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 1_000_000_000,
    "max_concurrent": 10_000,
    "budgets": [{"period": "day", "limit_usd": "10000"}, {"period": "month", "limit_usd": "99999"}],
}


def _config(upstream: str) -> dict[str, Any]:
    return {
        "providers": {
            "gpu": {"kind": "vllm", "replicas": [upstream]},
            "ant": {"kind": "anthropic", "api_key": "${BENCH_KEY}", "base_url": upstream},
            "oai": {"kind": "openai", "api_key": "${BENCH_KEY}", "base_url": f"{upstream}/v1"},
        },
        "models": [
            _model("bench-vllm", "gpu"),
            _model("bench-large", "gpu"),
            _model("bench-openai", "oai"),
            _model("bench-anthropic", "ant"),
        ],
        "routing": {
            "auto": {
                "tiers": [
                    {"name": "economy", "models": {"bench-vllm": 1}},
                    {"name": "quality", "models": {"bench-large": 1}, "share": 0.3},
                ]
            }
        },
    }


def _model(name: str, provider: str) -> dict[str, object]:
    return {
        "name": name,
        "context_length": 8192,
        "capabilities": ["chat"],
        "tiers": ["interactive", "batch"],
        "price": {"input_per_mtok": "0.20", "output_per_mtok": "0.60"},
        "deployments": [{"provider": provider, "model": "mock", "weight": 100}],
    }


def _today() -> date:
    return datetime.now(UTC).date()


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _call(url: str, key: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """The JSON that a control-plane call answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {**_authorization(key), "content-type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        document = json.load(response)
    if not isinstance(document, dict):
        raise BenchError(f"{url} answered {document!r}")
    return document


def _accepted(url: str, key: str) -> bool:
    try:
        _call(url, key)
    except urllib.error.HTTPError:
        return False
    return True
