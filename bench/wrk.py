"""Load from wrk: as many requests as the connections allow, every answer checked."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.answers import MARKER, Question
from bench.errors import BenchError
from bench.machine import OTHER_CORE, pinned

_SCRIPT = Path(__file__).with_name("load.lua")
_RESULT = re.compile(r"^RESULT (\w+)=(-?\d+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^EXAMPLE (.+)$", re.MULTILINE)
#: wrk counts an answer slower than this as an error. Slow gateways queue for seconds.
_TIMEOUT = "60s"
_GRACE_SECONDS = 90


@dataclass(frozen=True)
class Endpoint:
    """Where to send chat completions, and as whom."""

    base_url: str
    model: str
    key: str | None = None

    @property
    def url(self) -> str:
        """The chat completions URL."""
        return f"{self.base_url}/v1/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry the key."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}


@dataclass(frozen=True)
class Load:
    """What one run of wrk saw. Latencies in microseconds.

    Attributes:
        requests, duration_us: of all of it.
        lead_requests, lead_us: of the lead-in, which is not part of the rate.
    """

    connections: int
    requests: int
    duration_us: int
    lead_requests: int
    lead_us: int
    bytes: int
    bad: int
    connect: int
    read: int
    write: int
    status: int
    timeout: int
    p50_us: int
    p90_us: int
    p99_us: int
    example: str

    @property
    def rate(self) -> float:
        """Whole answers a second."""
        return (self.requests - self.lead_requests) * 1e6 / (self.duration_us - self.lead_us)

    def error(self) -> str | None:
        """What is wrong, unless every answer was a whole 200."""
        if not self.requests:
            return "no answers at all"
        kinds = ("bad", "connect", "read", "write", "status", "timeout")
        seen = {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}
        return f"{seen} in {self.requests} answers, such as {self.example}" if seen else None


def ensure_installed() -> None:
    """Install wrk where that is possible without asking; say how otherwise."""
    if shutil.which("wrk") is not None:
        return
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        subprocess.run(["apt-get", "update", "-q"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "install", "-y", "-q", "wrk"], check=False)
    if shutil.which("wrk") is None:
        raise BenchError("wrk is missing: install Debian's package wrk (apt-get install wrk)")


def version() -> str:
    """The version wrk says it has."""
    # wrk answers -v with its version and a failing exit status.
    output = subprocess.run(["wrk", "-v"], check=False, capture_output=True, text=True).stdout
    return output.split(" [")[0].removeprefix("wrk ")


def run(
    endpoint: Endpoint, question: Question, connections: int, seconds: int, lead_in: float = 0.0
) -> Load:
    """Load an endpoint; the answers in the result are not yet judged, see `Load.error`.

    Args:
        seconds: for how long, with the lead-in.
        lead_in: so many seconds of it don't count for the rate.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", _TIMEOUT]
    command += ["-s", str(_SCRIPT)]
    for name, value in endpoint.headers.items():
        command += ["-H", f"{name}: {value}"]
    command += [endpoint.url, "--", question.body.decode(), str(question.words)]
    command += [question.tail, MARKER, str(lead_in)]
    done = subprocess.run(
        pinned(command, OTHER_CORE),
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + _GRACE_SECONDS,
    )
    if done.returncode != 0:
        raise BenchError(f"wrk failed: {done.stderr or done.stdout}")
    example = _EXAMPLE.search(done.stdout)
    figures = {name: int(value) for name, value in _RESULT.findall(done.stdout)}
    return Load(
        connections=connections,
        example="" if example is None else example.group(1).strip(),
        **figures,
    )
