"""What a submission of 50,000 requests costs a gateway, by the public interface.

    python -m bench.batch_submissions [--lines 50000] [--bytes 4000]

Each door is measured on its own: `POST /v1/batch` with lines, `POST /v1/files`, and
`POST /v1/batches` of that file. Of each: the seconds until it was accepted, the gateway's peak of
resident memory meanwhile, and how long interactive requests took that were made at the same time.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import GATEWAY_CORE, free_port
from bench.process import Server
from bench.sluice import installation

_CONFIG = {
    "providers": {"sim": {"kind": "simulator", "ttft_ms": 1, "itl_ms": 1}},
    "models": [
        {
            "name": "simulated",
            "context_length": 100_000,
            "capabilities": ["chat"],
            "deployments": [{"provider": "sim", "model": "sim"}],
        }
    ],
}
_PAUSE_SECONDS = 0.01
_BOUNDARY = "sluice-bench"


@dataclass(frozen=True)
class Measured:
    """One submission."""

    door: str
    seconds: float
    peak_bytes: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


class Site:
    """A gateway with everything it needs.

    Attributes:
        pid: the gateway's process.
    """

    def __init__(self, server: Server, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self.pid = server.pid

    def call(self, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        """A POST; its answer's JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            connection.request(
                "POST", path, body, {"authorization": f"Bearer {self._key}", **headers}
            )
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise SystemExit(f"{path}: {response.status} {text[:500]!r}")
            answer: dict[str, Any] = json.loads(text)
            return answer
        finally:
            connection.close()

    def chat(self) -> None:
        """A short interactive request."""
        body = {
            "model": "simulated",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "x"}],
        }
        self.call("/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})


def measured(site: Site, door: str, work: Callable[[], Any]) -> Measured:
    """Do some work, and watch the gateway meanwhile."""
    taken: list[float] = []
    ended = threading.Event()

    def probe() -> None:
        while not ended.is_set():
            begun = time.perf_counter()
            site.chat()
            taken.append(time.perf_counter() - begun)
            time.sleep(_PAUSE_SECONDS)

    Path(f"/proc/{site.pid}/clear_refs").write_text("5")  # the peak begins anew
    thread = threading.Thread(target=probe)
    thread.start()
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    ended.set()
    thread.join()
    ordered = sorted(taken)
    return Measured(
        door,
        seconds,
        _peak(site.pid),
        statistics.median(ordered) * 1000,
        ordered[int(len(ordered) * 0.99)] * 1000,
        ordered[-1] * 1000,
    )


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmHWM")


def write_input(path: Path, lines: int, size: int) -> None:
    """An input of so many requests, each of about so many bytes."""
    with path.open("w") as file:
        for number in range(lines):
            line = {
                "custom_id": f"request-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "simulated",
                    "max_tokens": 16,
                    "messages": [{"role": "user", "content": "x" * max(1, size - 190)}],
                },
            }
            file.write(json.dumps(line) + "\n")


def form(path: Path) -> Iterator[bytes]:
    """The file in a form, as it goes."""
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    named = 'form-data; name="file"; filename="bench.jsonl"'
    yield f"{head}--{_BOUNDARY}\r\nContent-Disposition: {named}\r\n\r\n".encode()
    with path.open("rb") as file:
        while chunk := file.read(1 << 16):
            yield chunk
    yield f"\r\n--{_BOUNDARY}--\r\n".encode()


def run(site: Site, path: Path) -> list[Measured]:
    """All doors, one after the other."""
    size = str(path.stat().st_size)

    def lines() -> None:
        with path.open("rb") as file:
            headers = {"content-length": size, "content-type": "application/jsonl"}
            site.call("/v1/batch", file, headers)

    uploaded: dict[str, Any] = {}

    def upload() -> None:
        kind = f"multipart/form-data; boundary={_BOUNDARY}"
        uploaded.update(site.call("/v1/files", form(path), {"content-type": kind}))

    def create() -> None:
        body = {
            "input_file_id": uploaded["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        site.call("/v1/batches", json.dumps(body), {"content-type": "application/json"})

    site.chat()
    return [
        measured(site, "nothing, for 3 s", lambda: time.sleep(3)),
        measured(site, "POST /v1/batch", lines),
        measured(site, "POST /v1/files", upload),
        measured(site, "POST /v1/batches", create),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=4_000, help="of a line, about")
    args = parser.parse_args()
    with installation() as (program, state, logs):
        config = logs / "config.yaml"
        config.write_text(json.dumps(_CONFIG))
        port = free_port()
        server = Server(
            "serve",
            [program, "serve", "--config", str(config), "--port", str(port)],
            log=logs / "serve.log",
            core=GATEWAY_CORE,
            env=state.env,
        )
        try:
            server.wait_until_answering(f"http://127.0.0.1:{port}/health/ready")
            path = logs / "bench.jsonl"
            write_input(path, args.lines, args.bytes)
            print(f"{args.lines} lines, {path.stat().st_size / 1e6:.1f} MB")
            for each in run(Site(server, port, state.env["BENCH_KEY"]), path):
                print(
                    f"{each.door}: {each.seconds:.2f} s, peak {each.peak_bytes / 1e6:.0f} MB;"
                    f" interactive p50 {each.p50_ms:.1f} ms, p99 {each.p99_ms:.1f} ms,"
                    f" worst {each.worst_ms:.1f} ms"
                )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
