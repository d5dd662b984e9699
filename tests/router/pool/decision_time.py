"""How long a placement takes: `python -m tests.router.pool.decision_time`.

A hundred replicas with full indexes, prompts of 8k tokens in 64 blocks: some new, some that share a
system prompt with everybody, some that continue a conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from time import thread_time_ns

from sluice.router.pool.blocks import block_hashes, isolation_salt
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.placement import PrefixLoad, Prompt
from sluice.router.pool.scheduler import PoolRequest, PoolScheduler

BLOCKS = 64
BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds, sorted."""

    values: list[float]

    def percentile(self, percent: float) -> float:
        """The value that so many in a hundred do not exceed."""
        return self.values[min(len(self.values) - 1, int(len(self.values) * percent / 100))]


def prompts(random: Random, count: int) -> list[Prompt]:
    """New ones, ones with a common beginning, and continued ones, in equal parts."""
    system = [random.getrandbits(64) for _ in range(8)]
    conversations = [[random.getrandbits(64) for _ in range(BLOCKS)] for _ in range(200)]
    made = []
    for number in range(count):
        fresh = [random.getrandbits(64) for _ in range(BLOCKS)]
        if number % 3 == 1:
            fresh[:8] = system
        elif number % 3 == 2:
            fresh[:48] = random.choice(conversations)[:48]
        made.append(Prompt(BLOCKS * BLOCK_TOKENS, tuple(fresh), BLOCK_TOKENS))
    return made


def measure(replicas: int = 100, count: int = 2_000) -> dict[str, Times]:
    """Time matching with placing, everything from `submit` to `Dispatch`, and hashing.

    In processor time, so that what else the machine does is left out.
    """
    random = Random(1)
    placement = PrefixLoad(random)
    scheduler = PoolScheduler("gateway", placement, BoundPolicy(2.0))
    for number in range(replicas):
        scheduler.join(f"replica-{number}", ReplicaLimits(4_000, BLOCK_TOKENS))
    every = prompts(random, count + 4_000)
    for number, prompt in enumerate(every[count:]):
        replica = f"replica-{number % replicas}"
        scheduler.index.insert(replica, prompt.hashes)
        if number < replicas:
            scheduler.index.insert(replica, every[1].hashes[:8])
    loads = list(scheduler.loads)
    texts = [random.randbytes(BLOCKS * 512) for _ in range(64)]
    salt = isolation_salt(b"secret", "team")
    decide, whole, hashing = [], [], []
    for number, prompt in enumerate(every[:count]):
        began = thread_time_ns()
        placement.place(prompt, loads, scheduler.index.match(prompt.hashes))
        decide.append((thread_time_ns() - began) / 1_000)
        request = PoolRequest(str(number), prompt, 100)
        began = thread_time_ns()
        scheduler.submit(request, float(number))
        scheduler.decide(float(number))
        whole.append((thread_time_ns() - began) / 1_000)
        scheduler.first_token(request.id, number + 0.5)
        scheduler.ended(request.id, number + 0.6)
        scheduler.take_hints()
        text = texts[number % len(texts)]
        began = thread_time_ns()
        block_hashes(text, salt)
        hashing.append((thread_time_ns() - began) / 1_000)
    return {
        "decision": Times(sorted(decide)),
        "submit to dispatch": Times(sorted(whole)),
        "hashing 32 kB": Times(sorted(hashing)),
    }


if __name__ == "__main__":
    for name, times in measure().items():
        print(
            f"{name:20} p50 {times.percentile(50):6.1f} µs   "
            f"p90 {times.percentile(90):6.1f} µs   p99 {times.percentile(99):6.1f} µs"
        )
