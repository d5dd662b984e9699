"""What a batch does to interactive requests: `python -m bench.tiers --vllm URL --model NAME`.

One vLLM behind a gateway and a batch worker, in turns with interactive requests alone, with a
saturating batch alone, and with both. Start it with `--scheduling-policy priority`. What is
compared is the time to the first token, and the batch's items against those that interactive
requests leave it, by the time that they take of an engine that has nothing else to do.

Prompts are as long as people's are, see `bench.prompts`. The requests of a turn alone and those of
the turn beside the batch come at the same times and are of the same lengths: which of them come
upon each other is a matter of chance, and makes more difference than a batch does.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp

from bench.batch import call, running
from bench.machine import free_port
from bench.overload import times
from bench.process import Server
from bench.prompts import Prompts
from bench.sluice import State, installation

_ITEM_TOKENS = 64
_ANSWER_TOKENS = 16
_JOB_ITEMS = 20_000


@dataclass(frozen=True, slots=True)
class _Answer:
    """How long one took; seconds.

    Attributes:
        first: to its first token.
        queued: of which in the gateway's queue.
    """

    first: float
    queued: float


def main() -> None:
    """Measure, and print one line for each kind of turn."""
    parser = argparse.ArgumentParser(prog="python -m bench.tiers", description=__doc__)
    parser.add_argument("--vllm", required=True, help="address of the engine")
    parser.add_argument("--model", required=True, help="what it serves")
    parser.add_argument("--max-running", type=int, default=16, help="sequences that it batches")
    parser.add_argument("--rate", type=float, default=2.0, help="interactive requests a second")
    parser.add_argument("--longest", type=int, default=1_900, help="tokens of a prompt, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with installation() as (program, state, logs):
        _measure(args, program, state, logs)


def _measure(args: argparse.Namespace, program: str, state: State, logs: Path) -> None:
    env = {**state.env, "SLUICE_FILES_DIR": str(logs / "files")}
    port = free_port()
    config = logs / "tiers.json"
    config.write_text(json.dumps(_config(args.vllm, args.model, args.max_running)))
    command = [program, "serve", "--config", str(config), "--port", str(port)]
    site = _Site(f"http://127.0.0.1:{port}", env["BENCH_KEY"], args)
    # elsewhere in a deployment: here it must not take the engine's processor time
    worker = ["nice", "-n", "15", program, "batch", "run", "--config", str(config)]
    alone: list[_Answer] = []
    together: list[_Answer] = []
    items = {"batch": 0, "both": 0}
    most = 0.0
    with running("gateway", command, logs, None, env) as gateway:
        gateway.wait_until_answering(f"{site.url}/health/live")
        site.submit()
        for turn in range(args.turns):
            alone += site.interact(turn)
            most += site.saturate(args.max_running) / args.turns
            with _worker(site, worker, logs, env):
                before = site.completed()
                time.sleep(args.seconds)
                items["batch"] += site.completed() - before
                before = site.completed()
                together += site.interact(turn)
                items["both"] += site.completed() - before
    seconds = args.turns * args.seconds
    asked = len(together) / seconds
    left = items["batch"] * (1 - asked / most)
    print(f"interactive alone: {_told(alone)}")
    print(f"with a batch:      {_told(together)}")
    print(f"{most:.1f} interactive requests a second at most, {asked:.1f} asked for")
    print(
        f"batch: {items['batch'] / seconds:.1f} items a second alone, {items['both'] / seconds:.1f}"
        f" beside: {items['both'] / left:.0%} of what is left"
    )


class _Site:
    """The gateway, as its clients see it."""

    def __init__(self, url: str, key: str, args: argparse.Namespace) -> None:
        self.url = url
        self._key = key
        self._rate: float = args.rate
        self._seconds: float = args.seconds
        self._prompts = Prompts(args.longest)
        self._job = ""

    def submit(self) -> None:
        """A job that does not end."""
        made = call(f"{self.url}/v1/batch", self._key, b"".join(map(_line, range(_JOB_ITEMS))))
        self._job = str(made["batch_id"])

    def completed(self) -> int:
        """Items of the job that are done."""
        counts = call(f"{self.url}/v1/batch/{self._job}", self._key)["request_counts"]
        assert isinstance(counts, dict)
        return int(counts["completed"])

    def interact(self, turn: int) -> list[_Answer]:
        """Ask for a turn, whatever becomes of the answers; turns of the same number are alike."""
        return asyncio.run(self._interact(Random(turn)))

    def saturate(self, clients: int) -> float:
        """Answers a second where so many clients ask again and again."""
        return asyncio.run(self._saturate(clients))

    async def _saturate(self, clients: int) -> float:
        headers = {"authorization": f"Bearer {self._key}"}
        until, answered, draw = time.monotonic() + self._seconds, 0, Random(0)

        async def client(session: aiohttp.ClientSession) -> None:
            nonlocal answered
            while time.monotonic() < until:
                try:
                    await self._ask(session, self._prompts.draw(draw))
                except aiohttp.ClientResponseError as refused:
                    if refused.status != 503 or refused.headers is None:
                        raise
                    await asyncio.sleep(float(refused.headers["retry-after"]))
                else:
                    answered += 1

        async with aiohttp.ClientSession(headers=headers) as session:
            await asyncio.gather(*(client(session) for _ in range(clients)))
        return answered / self._seconds

    async def _interact(self, draw: Random) -> list[_Answer]:
        headers = {"authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[_Answer]] = []
            due = time.monotonic()
            end = due + self._seconds
            while (due := due + draw.expovariate(self._rate)) < end:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.append(group.create_task(self._ask(session, self._prompts.draw(draw))))
        return [task.result() for task in tasks]

    async def _ask(self, session: aiohttp.ClientSession, prompt: str) -> _Answer:
        body = _body(prompt, _ANSWER_TOKENS)
        began = time.perf_counter()
        first = 0.0
        url = f"{self.url}/v1/chat/completions"
        async with session.post(url, json={**body, "stream": True}) as response:
            response.raise_for_status()
            async for line in response.content:
                if not first and b'"content":"' in line and b'"content":""' not in line:
                    first = time.perf_counter() - began
            return _Answer(first, int(response.headers.get("x-queue-ms", "0")) / 1000)


@contextmanager
def _worker(site: _Site, command: list[str], logs: Path, env: dict[str, str]) -> Iterator[Server]:
    """A worker, once it is up to speed."""
    with running("worker", command, logs, None, env) as worker:
        before, deadline = site.completed(), time.monotonic() + 120
        while site.completed() < before + 64:
            worker.check_alive()
            if time.monotonic() > deadline:
                raise SystemExit("the batch does not get going")
            time.sleep(0.2)
        yield worker


def _told(answers: list[_Answer]) -> str:
    first = times([each.first for each in answers])
    queued = times([each.queued for each in answers])
    return f"{first} to the first token, of which {queued} in the queue, {len(answers)} requests"


def _line(number: int) -> bytes:
    line = {
        "custom_id": f"request-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": _body(f"Item {number} of a batch: say something", _ITEM_TOKENS),
    }
    return json.dumps(line).encode() + b"\n"


def _body(prompt: str, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "bench", "messages": messages, "max_tokens": tokens, "ignore_eos": True}


def _config(vllm: str, model: str, max_running: int) -> dict[str, object]:
    pool = {
        "engine_priority": True,
        "max_running": max_running,
        "ttft_slo_seconds": {"interactive": 2.0},
    }
    return {
        "providers": {"gpu": {"kind": "vllm", "replicas": [vllm], "pool": pool}},
        "models": [
            {
                "name": "bench",
                "context_length": 2048,
                "capabilities": ["chat"],
                "deployments": [{"provider": "gpu", "model": model}],
            }
        ],
    }


if __name__ == "__main__":
    main()
