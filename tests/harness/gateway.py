"""A gateway as a process of its own, as users run it, with its billing consumer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from sluice.gateway.supervisor import child_setup
from tests.harness.polling import eventually

TEAM_KEY = "sk-test-team-0123456789abcdef0123456789abcdef"
ADMIN_KEY = "sk-test-admin-0123456789abcdef0123456789abcde"

#: Below those that systems give to outgoing connections; a range for each of several test runners.
_PORTS = 3_000
_FIRST_PORT = 20_000 + _PORTS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
#: Gateways share ports: where each run began at the same one, they would share those of another's.
_OFFSET = os.getpid() * 97 % _PORTS
_ports = itertools.cycle(_FIRST_PORT + (_OFFSET + n) % _PORTS for n in range(_PORTS))
_ports_lock = threading.Lock()


def free_port() -> int:
    """A port that nobody listens on, and that nobody else will be given soon."""
    for _ in range(_PORTS):
        with _ports_lock:
            port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def sluice(*arguments: str) -> list[str]:
    """The command line of a Sluice process."""
    return [sys.executable, "-m", "sluice", *arguments]


class Process:
    """A child process with a log; ends with the tests, however they end."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        self.command = command
        self.env = {**os.environ, **env}
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=child_setup(signal.SIGKILL),  # noqa: PLW1509 - no threads of ours
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def terminate(self) -> None:
        """Ask it to stop; do not wait."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, seconds: float = 60) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self) -> None:
        """Ask it to stop, and wait for its end."""
        self.terminate()
        if self._process is not None:
            self.wait()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Gateway(Process):
    """`sluice serve` on a free port, ready when `start` returns."""

    def __init__(
        self,
        config: Mapping[str, Any],
        database_url: str,
        redis_url: str,
        directory: Path,
        name: str = "gateway",
        port: int | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        file = directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        env = {
            "SLUICE_DATABASE_URL": database_url,
            "SLUICE_REDIS_URL": redis_url,
            "SLUICE_ADMIN_KEY": ADMIN_KEY,
            "SLUICE_BOOTSTRAP_KEY": TEAM_KEY,
            "SLUICE_SPOOL_DIR": str(directory / f"{name}-spool"),
            "SLUICE_FILES_DIR": str(directory / "files"),
        }
        command = sluice("serve", "--config", str(file), "--port", str(self.port), *arguments)
        super().__init__(command, env, directory / f"{name}.log")

    def start(self) -> None:
        super().start()
        eventually(self.answers, 30)

    def answers(self) -> bool:
        """Whether it serves; fails if it has ended."""
        assert self.running(), self.log_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{self.url}/health/live", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def api(self, method: str, path: str, body: Any = None, key: str = TEAM_KEY) -> Any:
        """A control-plane call that must succeed; gives the answer's JSON."""
        response = self.request(method, path, body, key)
        assert response.status_code < 300, response.text
        return response.json()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = TEAM_KEY,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30,
    ) -> httpx.Response:
        """Any call; `body` is bytes, or becomes JSON."""
        sent = dict(headers or {})
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return httpx.request(
            method,
            self.url + path,
            content=content,
            headers=sent,
            timeout=timeout,
            verify=False,  # no TLS here, and loading the authorities takes 50 ms
        )

    def record(self, request_id: str, seconds: float = 10) -> dict[str, Any]:
        """The usage record of a request, once it is in the ledger."""
        path = f"/v1/usage/records?request_id={request_id}"
        rows = eventually(lambda: self.api("GET", path, key=ADMIN_KEY)["data"], seconds)
        assert len(rows) == 1
        row: dict[str, Any] = rows[0]
        return row

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry the labels."""
        total = 0.0
        for line in self.request("GET", "/metrics", key=None).text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{label}="{value}"' in line for label, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total


def start_together(gateways: Sequence[Gateway], seconds: float = 90.0) -> None:
    """Start several, each while the others do: on a small machine that takes a while."""
    for gateway in gateways:
        Process.start(gateway)
    for gateway in gateways:
        eventually(gateway.answers, seconds)
