"""How long the real engine takes, as its client sees it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.engines.calibration.loads import Ask, Load

_INSIDE = Path(__file__).with_name("inside.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One request's times, in seconds.

    Attributes:
        sent: when it was sent, or came.
        tokens: when each token of the answer came.
        cached: prompt tokens that were in the cache.
    """

    sent: float
    tokens: tuple[float, ...]
    cached: int

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.tokens[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


class Inside(msgspec.Struct):
    """What `inside.py` tells.

    Attributes:
        num_gpu_blocks: the engine's blocks, with its null block.
        block_size: tokens in a block.
        timings: of each load each run, of which each request.
    """

    num_gpu_blocks: int
    block_size: int
    timings: list[list[list[Timing]]]


def measure_inside(
    python: Path, model: Path, sizes: dict[str, int], loads: list[Load], runs: int
) -> Inside:
    """Put loads on an engine without a server, by the processor's time."""
    spec = {"model": str(model.resolve()), "sizes": sizes, "loads": loads, "runs": runs}
    foreign = ("VLLM_", "HF_", "PYTHON")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        with log.open("wb") as output:
            done = subprocess.run(
                [python, _INSIDE, result],
                input=msgspec.json.encode(spec),
                env=inherited | _ENVIRONMENT,
                stdout=output,
                stderr=output,
                check=False,
            )
        assert done.returncode == 0, log.read_text()[-4000:]
        return msgspec.json.decode(result.read_bytes(), type=Inside)


def quickest(runs: Sequence[list[Timing]]) -> list[Timing]:
    """The quickest run of a load: whatever else the machine does only slows it."""
    return min(runs, key=lambda run: sum(timing.tokens[-1] - timing.sent for timing in run))


async def measure(url: str, model: str, load: Load, salt: str) -> list[Timing]:
    """Put a load on a server.

    Args:
        url: the server.
        model: its model.
        load: what is asked.
        salt: of the cache, so that the same again is cold again.

    Returns:
        One timing for each request, in the load's order.
    """
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        places = asyncio.Semaphore(load.concurrency or len(load.asks))
        begin = time.perf_counter()

        async def one(ask: Ask) -> Timing:
            async with places:
                if load.concurrency is None:
                    await asyncio.sleep(begin + ask.at - time.perf_counter())
                return await _ask(session, {"model": model, "cache_salt": salt}, ask)

        return await asyncio.gather(*map(one, load.asks))


async def _ask(session: aiohttp.ClientSession, members: dict[str, str], ask: Ask) -> Timing:
    body = {
        **members,
        "prompt": ask.prompt,
        "max_tokens": ask.output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    data = msgspec.json.encode(body)
    headers = {"content-type": "application/json"}
    times: list[float] = []
    usage: dict[str, Any] = {}
    sent = time.perf_counter()
    async with session.post("/v1/completions", data=data, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            usage = msgspec.json.decode(line[6:])["usage"]
            times += [now] * (usage["completion_tokens"] - len(times))
    assert len(times) == ask.output
    details = usage.get("prompt_tokens_details") or {}
    return Timing(sent, tuple(times), details.get("cached_tokens") or 0)
