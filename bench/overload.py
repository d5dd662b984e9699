"""A pool beyond its capacity: `python -m bench.overload --vllm URL [--vllm URL ...] --model NAME`.

What it does within its objective when three times as much is asked of it, and what three teams that
stay below their quarters feel of a fourth that asks for ten times its own. Capacity is what clients
get within the objective, twice as many as the engines batch. Answers are of different lengths, as
people's are: of one length, all that began together would end together for ever. So are prompts,
see `bench.prompts`. The teams ask for the same lengths at the same times without the flood and
beside it, in turns, as a machine's pace changes within minutes. Where capacity is measured, who is
refused comes again when the refusal says so: clients that came at once would take the engine's
processor for refusals. What is offered beyond it is offered whatever was refused.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

import aiohttp

from bench.batch import running
from bench.machine import free_port
from bench.prompts import Prompts
from bench.sluice import State, installation, make_team_key

_ANSWER_TOKENS = (16, 48)
_TEAMS = ("a", "b", "c", "flood")


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request went.

    Attributes:
        status: of its response.
        first: seconds to its first token, or to its refusal.
        whole: the answer came to its end.
        queued: seconds in the gateway's queue.
        again: seconds after which a refused one may come again.
    """

    status: int
    first: float
    whole: bool
    queued: float
    again: float


def main() -> None:
    """Measure, and print one line for each part."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--vllm", required=True, action="append", help="address of an engine")
    parser.add_argument("--model", required=True, help="what it serves")
    parser.add_argument("--max-running", type=int, default=16, help="sequences that it batches")
    parser.add_argument("--objective", type=float, default=2.0, help="seconds to the first token")
    parser.add_argument("--longest", type=int, default=1_900, help="tokens of a prompt, at most")
    parser.add_argument("--part", type=float, default=0.7, help="of its share that a team asks for")
    parser.add_argument("--batched-tokens", type=int, default=2048, help="that a step computes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part, or turn")
    parser.add_argument("--turns", type=int, default=1, help="without the flood, and beside it")
    args = parser.parse_args()
    with installation() as (program, state, logs):
        _measure(args, program, state, logs)


def _measure(args: argparse.Namespace, program: str, state: State, logs: Path) -> None:
    port = free_port()
    config = logs / "overload.json"
    config.write_text(json.dumps(_config(args)))
    command = [program, "serve", "--config", str(config), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running("gateway", command, logs, None, state.env) as gateway:
        gateway.wait_until_answering(f"{url}/health/live")
        keys = [make_team_key(url, name) for name in _TEAMS]
        asyncio.run(_parts(url, keys, args))


async def _parts(url: str, keys: Sequence[str], args: argparse.Namespace) -> None:
    seconds, objective = args.seconds, args.objective
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        prompts = Prompts(args.longest)
        *others, flood = (_Team(session, url, key, seed, prompts) for seed, key in enumerate(keys))
        clients = 2 * args.max_running * len(args.vllm)
        await flood.closed(clients, seconds / 4)  # what is made once is made, and rates are learnt
        alone = await flood.closed(clients, seconds)
        capacity = _good(alone, objective) / seconds
        print(f"capacity: {capacity:.1f} requests a second; {_told(alone, objective)}", flush=True)
        over = await flood.open(3 * capacity, seconds)
        share = _good(over, objective) / seconds / capacity
        print(f"3 times as many: {share:.0%} of the capacity; {_told(over, objective)}", flush=True)
        share = capacity / len(keys)
        quiet: list[list[Answer]] = [[] for _ in others]
        beside: list[list[Answer]] = [[] for _ in keys]
        for turn in range(args.turns):
            asked = partial(_Team.open, rate=args.part * share, seconds=seconds, turn=turn)
            _add(quiet, await asyncio.gather(*map(asked, others)))
            flooded = flood.open(10 * share, seconds, turn)
            _add(beside, await asyncio.gather(*map(asked, others), flooded))
        for name, before, after in zip(_TEAMS, quiet, beside, strict=False):
            print(f"team {name} without the flood: {_told(before, objective)}")
            print(f"team {name} beside it: {_told(after, objective)}")
        print(f"all three without the flood: {_told(list(chain(*quiet)), objective)}")
        print(f"all three beside it: {_told(list(chain(*beside[:-1])), objective)}")
        print(f"the flood: {_told(beside[-1], objective)}")


class _Team:
    """A caller of the gateway."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, key: str, seed: int, prompts: Prompts
    ) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"}
        self._seed = seed
        self._prompts = prompts

    async def closed(self, clients: int, seconds: float) -> list[Answer]:
        """So many clients ask again as soon as they have been answered, or may come again."""
        until = time.monotonic() + seconds
        answers: list[Answer] = []
        draw = Random(self._seed)

        async def client() -> None:
            while time.monotonic() < until:
                answers.append(answer := await self._ask(draw))
                await asyncio.sleep(answer.again)

        await asyncio.gather(*(client() for _ in range(clients)))
        return answers

    async def open(self, rate: float, seconds: float, turn: int = 0) -> list[Answer]:
        """So many requests a second, whatever becomes of them; turns of the same number are
        alike."""
        end, draw = time.monotonic() + seconds, Random(f"{self._seed} {turn}")
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[Answer]] = []
            due = time.monotonic()
            while (due := due + draw.expovariate(rate)) < end:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.append(group.create_task(self._ask(draw)))
        return [task.result() for task in tasks]

    async def _ask(self, draw: Random) -> Answer:
        body = {
            "model": "bench",
            "messages": [{"role": "user", "content": self._prompts.draw(draw)}],
            "max_tokens": draw.randint(*_ANSWER_TOKENS),
            "ignore_eos": True,
            "stream": True,
        }
        began, first, whole = time.perf_counter(), 0.0, False
        async with self._session.post(self._url, json=body, headers=self._headers) as response:
            async for line in response.content:
                if not first and (response.status != 200 or b'"content":"' in line):
                    first = time.perf_counter() - began
                whole = whole or line.startswith(b"data: [DONE]")
            queued = int(response.headers.get("x-queue-ms", "0")) / 1000
            again = float(response.headers.get("retry-after", "0"))
            first = first or time.perf_counter() - began
            return Answer(response.status, first, whole, queued, again)


def _add(all_of_it: list[list[Answer]], turn: Sequence[list[Answer]]) -> None:
    for answers, more in zip(all_of_it, turn, strict=True):
        answers.extend(more)


def _good(answers: Sequence[Answer], objective: float) -> int:
    return sum(each.whole and each.first <= objective for each in answers)


def _told(answers: Sequence[Answer], objective: float) -> str:
    served = [each.first for each in answers if each.status == 200]
    refused = [each.first for each in answers if each.status == 503]
    other = len(answers) - len(served) - len(refused)
    late = sum(first > objective for first in served)
    queued = [each.queued for each in answers if each.status == 200]
    return (
        f"{len(answers)} requests: {len(served)} served ({times(served)} to the first token,"
        f" of which {times(queued)} in the queue, {late} late), {len(refused)} refused"
        f" ({times(refused)}), {other} otherwise"
    )


def times(seconds: Sequence[float]) -> str:
    """Median and 90th percentile of some seconds, to be read."""
    if len(seconds) < 2:
        return "-"
    middle, late = statistics.median(seconds), statistics.quantiles(seconds, n=10)[-1]
    return f"p50 {middle * 1000:.0f}, p90 {late * 1000:.0f} ms"


def _config(args: argparse.Namespace) -> dict[str, object]:
    pool = {
        "engine_priority": True,
        "max_running": args.max_running,
        "max_batched_tokens": args.batched_tokens,
        "ttft_slo_seconds": {"interactive": args.objective},
    }
    return {
        "providers": {"gpu": {"kind": "vllm", "replicas": args.vllm, "pool": pool}},
        "models": [
            {
                "name": "bench",
                "context_length": 2048,
                "capabilities": ["chat"],
                "deployments": [{"provider": "gpu", "model": args.model}],
            }
        ],
    }


if __name__ == "__main__":
    main()
