"""`sluice up` as a process, and its children by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import httpx
import yaml

from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.gateway.embedded.valkey import EmbeddedValkey
from tests.drills.books import Books
from tests.drills.site import PACED
from tests.harness.gateway import Process, free_port, sluice
from tests.harness.polling import eventually

#: What each part's command line contains.
PARTS = {
    "postgres": "bin/postgres -D",
    "valkey": "valkey-server",
    "billing": "-m sluice billing",
    "gateway": "-m sluice serve",
    "batch": "-m sluice batch",
}


class Up(Books):
    """One installation on one machine, in a directory; ready when `start` returns."""

    def __init__(self, directory: Path, env: Mapping[str, str], *arguments: str) -> None:
        self.data = directory / "data"
        postgres, valkey = EmbeddedPostgres(self.data), EmbeddedValkey(self.data)
        super().__init__(postgres.url, valkey.url, self.data / "spool")
        config = directory / "config.yaml"
        config.write_text(yaml.safe_dump(PACED))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = sluice("up", "--port", str(self.port), "--data-dir", str(self.data))
        command += ["--config", str(config), *arguments]
        self.process = Process(command, env, directory / "up.log")

    def start(self) -> str:
        """Start, and give what it printed by the time it was up."""
        before = len(self.output())
        self.process.start()

        def greeting() -> str | None:
            assert self.process.running(), self.output()[-3000:]
            said = self.output()[before:]
            return said if "\n  curl " in said and said.endswith("\n") else None

        said = eventually(greeting, 60)
        assert said is not None
        return said

    def output(self) -> str:
        """Everything printed until now, standard error included."""
        return self.process.log_text() if self.process.log.exists() else ""

    def interrupt(self) -> int:
        """What ctrl-C does; gives the exit status."""
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(60)

    def pid_of(self, part: str) -> int:
        """The process of a part, once it runs."""
        pids = eventually(
            lambda: [pid for pid in _children(self.process.pid) if PARTS[part] in _command(pid)]
        )
        assert len(pids) == 1
        return pids[0]

    def kill(self, part: str) -> None:
        """`kill -9` a part, and wait until another process has its place."""
        pid = self.pid_of(part)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid))
        self.pid_of(part)

    def workers(self) -> list[int]:
        """The processes that share the gateway's port."""
        return [
            pid for pid in _children(self.pid_of("gateway")) if PARTS["gateway"] in _command(pid)
        ]

    def family(self) -> list[int]:
        """Every process below, down to Postgres's own."""
        return _descendants(self.process.pid)

    def ask(self, key: str, model: str = "paced") -> httpx.Response:
        """A chat request."""
        body = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=20)

    def serves(self, key: str) -> bool:
        """Whether a chat request succeeds now."""
        try:
            return self.ask(key).status_code == 200
        except httpx.TransportError:
            return False


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return children + [below for child in children for below in _descendants(child)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
