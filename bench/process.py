"""Servers of the benchmark: started, awaited, stopped."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from bench.errors import BenchError
from bench.machine import pinned, resident_bytes

_LOG_LINES_SHOWN = 20
_SECONDS_TO_STOP = 15.0


class Server:
    """A child process in its own process group, with its output in a log file."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        log: Path,
        core: int | None,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self._log = log
        self._stop_signal = stop_signal
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command if core is None else pinned(command, core),
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

    def wait_until_answering(
        self, url: str, headers: dict[str, str] | None = None, seconds: float = 90
    ) -> None:
        """Return once `url` answers 200; fail with the end of the log otherwise."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchError(f"{self.name} ended at start:\n{self._last_lines()}")
            if _answers(url, headers or {}):
                return
            time.sleep(0.1)
        raise BenchError(f"{self.name} did not answer in {seconds:.0f} s:\n{self._last_lines()}")

    @property
    def pid(self) -> int:
        """Of the server itself."""
        return self._process.pid

    def resident_bytes(self) -> int:
        """Resident memory of the server and its children."""
        return resident_bytes(self._process.pid)

    def cpu_seconds(self) -> float:
        """Processor time of the server itself until now."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check_alive(self) -> None:
        """Fail if the server has ended by itself."""
        if self._process.poll() is not None:
            raise BenchError(f"{self.name} ended by itself:\n{self._last_lines()}")

    def stop(self) -> None:
        """End the whole process group, gently first."""
        self._signal(self._stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_STOP)
        # Children that outlived their parent still hold the core.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:])


def _answers(url: str, headers: dict[str, str]) -> bool:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
