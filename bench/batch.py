"""What the batch engine costs: `python -m bench.batch [--items 5000]`.

One worker has a core to itself; the mock upstream, Postgres, Valkey and the gateway that takes the
job share the other. Of the worker all processor time is counted, its pipeline's included: from the
claim to the transaction that stores the result.
"""

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.machine import GATEWAY_CORE, OTHER_CORE, free_port
from bench.process import Server
from bench.sluice import State, installation

_SECONDS = 600.0


def main() -> None:
    """Measure once, and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch", description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    items: int = parser.parse_args().items
    with installation() as (program, state, logs):
        _measure(items, program, state, logs)


def _measure(items: int, program: str, state: State, logs: Path) -> None:
    env = {**state.env, "SLUICE_FILES_DIR": str(logs / "files")}
    mock, door, metrics = free_port(), free_port(), free_port()
    config = logs / "batch.json"
    config.write_text(json.dumps(_config(mock)))
    gateway = [program, "serve", "--config", str(config), "--port", str(door)]
    worker = [program, "batch", "run", "--config", str(config), "--metrics-port", str(metrics)]
    mocking = [sys.executable, "-m", "bench.mock_upstream", "--port", str(mock)]
    with (
        running("mock", mocking, logs, OTHER_CORE, {}),
        running("gateway", gateway, logs, OTHER_CORE, env) as serving,
        running("worker", worker, logs, GATEWAY_CORE, env) as working,
    ):
        serving.wait_until_answering(f"http://127.0.0.1:{door}/health/live")
        working.wait_until_answering(f"http://127.0.0.1:{metrics}/metrics")
        _run(door, env["BENCH_KEY"], 200)  # what is made once is made
        before, began = working.cpu_seconds(), time.monotonic()
        _run(door, env["BENCH_KEY"], items)
        seconds, used = time.monotonic() - began, working.cpu_seconds() - before
    print(
        f"{items} items in {seconds:.1f} s, {items / seconds:.0f} a second;"
        f" {used / items * 1000:.2f} ms of one core an item"
    )


@contextmanager
def running(
    name: str, command: list[str], logs: Path, core: int | None, env: dict[str, str]
) -> Iterator[Server]:
    """A server for the time of a block."""
    server = Server(name, command, log=logs / f"{name}.log", core=core, env=env)
    try:
        yield server
    finally:
        server.stop()


def _run(port: int, key: str, items: int) -> None:
    """Submit a job, and wait for its end."""
    url = f"http://127.0.0.1:{port}/v1/batch"
    made = call(url, key, b"".join(_line(number) for number in range(items)))
    deadline = time.monotonic() + _SECONDS
    while True:
        job = call(f"{url}/{made['batch_id']}", key)
        if job["status"] == "completed":
            break
        if time.monotonic() > deadline:
            raise BenchError(f"the job did not end: {job}")
        time.sleep(0.1)
    if job["request_counts"] != {"total": items, "completed": items, "failed": 0}:
        raise BenchError(f"the job went wrong: {job}")


def call(url: str, key: str, body: bytes | None = None) -> dict[str, object]:
    """What a call of the gateway answers; with a body it is a job."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/jsonl"}
    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def _line(number: int) -> bytes:
    body = {"model": "bench", "messages": [{"role": "user", "content": f"Hello {number}"}]}
    line = {
        "custom_id": f"request-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {**body, "max_tokens": 64},
    }
    return json.dumps(line).encode() + b"\n"


def _config(mock: int) -> dict[str, object]:
    return {
        "providers": {"gpu": {"kind": "vllm", "replicas": [f"http://127.0.0.1:{mock}"]}},
        "models": [
            {
                "name": "bench",
                "context_length": 8192,
                "capabilities": ["chat"],
                "price": {"input_per_mtok": "0.20", "output_per_mtok": "0.60"},
                "deployments": [{"provider": "gpu", "model": "mock"}],
            }
        ],
    }


if __name__ == "__main__":
    main()
