"""Traces made up for tests: Poisson arrivals of prompts that share nothing, or a system prompt."""

from __future__ import annotations

from itertools import count
from random import Random

from sluice.router.fleet.trace import TraceRequest
from sluice.router.pool.fair_queue import Tier

BLOCK_TOKENS = 512


def poisson(
    rate: float,
    seconds: float,
    seed: int,
    *,
    team: str = "default",
    tier: Tier = "interactive",
    input_tokens: int = 2048,
    output_tokens: int = 64,
    start: float = 0.0,
) -> list[TraceRequest]:
    """Requests at a mean rate; lengths vary by half around their means."""
    random = Random(f"{seed} {team} {tier}")
    blocks = count(random.getrandbits(62) << 1)
    requests = []
    time = start + random.expovariate(rate)
    while time < start + seconds:
        tokens = max(1, round(input_tokens * random.uniform(0.5, 1.5)))
        hashes = tuple(next(blocks) for _ in range(-(-tokens // BLOCK_TOKENS)))
        output = max(1, round(output_tokens * random.uniform(0.5, 1.5)))
        requests.append(TraceRequest(time, tokens, output, hashes, team, tier))
        time += random.expovariate(rate)
    return requests


def merged(*traces: list[TraceRequest]) -> list[TraceRequest]:
    """Several traces as one, in the order of arrival."""
    return sorted((request for trace in traces for request in trace), key=lambda each: each.time)
