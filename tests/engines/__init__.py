"""The real engines that the tests run against, each a server in a child process.

Between the tests and a server stands a guard: this file run as a script. It holds the read end of
a pipe whose write end only the test process has. However the tests end (finished, interrupted,
killed) the pipe closes, and the guard ends the server with all its children and removes its scratch
folder. That holds on any system and from any thread, which a parent-death signal does not.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Engine", "EngineError"]

HOST = "127.0.0.1"
POLL_S = 0.1
#: How long a server may take to end by itself before its process group is killed.
GRACE_S = 10.0
LOG_TAIL_BYTES = 4_000
#: Variables that would change an engine behind the tests' back, or lead it into their packages.
FOREIGN_VARIABLES = ("VLLM_", "HF_", "LLM_KATAN_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class EngineError(RuntimeError):
    """An engine did not start, or did not end."""


class Engine(ABC):
    """A server started for the tests, ended with them whatever happens.

    Use it as a context manager, or call `start` and `stop`; after `stop` it can start again, on
    another port.
    """

    def __init__(self, *, log: Path, start_timeout_s: float) -> None:
        self.log = log
        self._start_timeout_s = start_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._group = 0

    @abstractmethod
    def _command(self, port: int) -> Sequence[str]:
        """The server's command line."""

    def _environment(self) -> Mapping[str, str]:
        """Environment variables for the server, besides the inherited ones."""
        return {}

    @property
    def url(self) -> str:
        """Where the server listens, without a path."""
        return f"http://{HOST}:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its `base_url`."""
        return f"{self.url}/v1"

    def start(self) -> None:
        """Start the server and return when it is healthy."""
        # Bound, not listening: no one else is given the port while the server comes up, yet the
        # server may bind it too.
        with socket.socket() as reservation:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind((HOST, 0))
            self._port = reservation.getsockname()[1]
            self._launch()
            try:
                self._wait_until_healthy()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End the server and everything it started; does nothing when it isn't running."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        assert guard.stdin is not None
        assert guard.stdout is not None
        guard.stdin.close()
        guard.stdout.close()
        try:
            guard.wait(timeout=2 * GRACE_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            raise EngineError(f"the guard of {self._name} hangs") from None

    def signal(self, number: signal.Signals) -> None:
        """Send the server and all its children a signal: SIGKILL to crash, SIGSTOP to hang."""
        os.killpg(self._group, number)

    def get(self, path: str, timeout_s: float = 5.0) -> bytes:
        """The body of a GET that must answer 200."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise EngineError(f"{self._name} answered {response.status} for {path}: {body!r}")
        return body

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _launch(self) -> None:
        if self._guard is not None:
            raise EngineError(f"{self._name} is already running")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_VARIABLES)}
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *self._command(self._port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, **self._environment()},
                # Out of reach of the terminal's Ctrl-C: the guard ends when the tests have ended.
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self._group = int(self._guard.stdout.readline() or 0)

    def _wait_until_healthy(self) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + self._start_timeout_s
        while not self._is_healthy():
            if time.monotonic() > deadline:
                raise EngineError(self._failure(f"not ready after {self._start_timeout_s:.0f} s"))
            with suppress(subprocess.TimeoutExpired):
                code = self._guard.wait(timeout=POLL_S)
                raise EngineError(self._failure(f"ended with status {code} while starting"))

    def _is_healthy(self) -> bool:
        try:
            self.get("/health")
        except (OSError, http.client.HTTPException, EngineError):
            return False
        return True

    def _failure(self, what: str) -> str:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{self._name} {what}; its log ({self.log}) ends with:\n{tail}"


def _guard(command: Sequence[str]) -> int:
    """Run `command` until it ends or the tests do, and leave nothing of it."""
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as scratch:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            cwd=scratch,
            env={**os.environ, "TMPDIR": scratch},
            start_new_session=True,
        )
        try:
            print(server.pid, flush=True)
            while server.poll() is None:
                tests_ended, _, _ = select.select([sys.stdin], [], [], POLL_S)
                if tests_ended:
                    server.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        server.wait(timeout=GRACE_S)
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
        return server.wait()


if __name__ == "__main__":
    raise SystemExit(_guard(sys.argv[1:]))
