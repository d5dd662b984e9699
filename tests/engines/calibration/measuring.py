"""How long the real engine takes, as its client sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from tests.engines.calibration.loads import Ask, Load


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


async def quickest(url: str, model: str, load: Load, runs: int) -> list[Timing]:
    """The quickest of several runs of a load: whatever else the machine does only slows it."""
    timings = [await measure(url, model, load, salt=f"run {run}") for run in range(runs)]
    return min(timings, key=lambda run: sum(timing.tokens[-1] - timing.sent for timing in run))


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
