"""What both engines are asked."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

#: The tiny model's vocabulary has 4,096 tokens; the first ones are special.
_TOKENS = range(10, 4000)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        prompt: its tokens.
        output: how many tokens it wants.
        at: when it comes, in seconds from the load's begin, where the load is open.
    """

    prompt: tuple[int, ...]
    output: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, of which so many are under way at once; None: each comes at its time."""

    name: str
    asks: tuple[Ask, ...]
    concurrency: int | None


def fitting_loads(seed: int) -> list[Load]:
    """What the pace is fitted to."""
    random = Random(seed)
    lengths = [16, 120, 300, 500, 800, 1100, 1500, 1900]
    return [
        _single(random, lengths),
        *(_decoding(random, concurrency, 64, 100) for concurrency in (1, 2, 4, 8, 16)),
        _decoding(random, 4, 1500, 80),
        _decoding(random, 12, 800, 80),
        _mixed(random, 8, 32),
        _mixed(random, 2, 12),
    ]


def held_out_loads(seed: int) -> list[Load]:
    """What it is judged by."""
    random = Random(seed)
    return [
        _single(random, [60, 200, 400, 650, 950, 1300, 1700]),
        _decoding(random, 3, 100, 100),
        _decoding(random, 6, 400, 80),
        _decoding(random, 14, 64, 80),
        _mixed(random, 4, 24),
        _mixed(random, 12, 48),
        _sharing(random, 6, 36),
        _open(random, 6.0, 40),
    ]


def _prompt(random: Random, length: int) -> tuple[int, ...]:
    return tuple(random.choices(_TOKENS, k=length))


def _single(random: Random, lengths: list[int]) -> Load:
    """One after the other; each prompt cold, then twice in the cache."""
    prompts = [_prompt(random, length) for length in lengths]
    return Load("one at a time, cold and cached", tuple(
        Ask(prompt, 12) for prompt in prompts for _ in range(3)
    ), 1)  # fmt: skip


def _decoding(random: Random, concurrency: int, prompt: int, output: int) -> Load:
    asks = tuple(Ask(_prompt(random, prompt), output) for _ in range(2 * concurrency))
    return Load(f"{concurrency} decode, prompts of {prompt}", asks, concurrency)


def _mixed(random: Random, concurrency: int, number: int) -> Load:
    asks = tuple(
        Ask(_prompt(random, random.randint(50, 1500)), random.randint(10, 60))
        for _ in range(number)
    )
    return Load(f"{concurrency} mixed", asks, concurrency)


def _sharing(random: Random, concurrency: int, number: int) -> Load:
    """Three system prompts of 1,000 tokens, and a few tokens of one's own."""
    shared = [_prompt(random, 1000) for _ in range(3)]
    asks = tuple(
        Ask(random.choice(shared) + _prompt(random, random.randint(20, 300)), 30)
        for _ in range(number)
    )
    return Load(f"{concurrency} share prefixes", asks, concurrency)


def _open(random: Random, rate: float, number: int) -> Load:
    asks, at = [], 0.0
    for _ in range(number):
        asks.append(Ask(_prompt(random, random.randint(50, 1500)), random.randint(10, 60), at))
        at += random.expovariate(rate)
    return Load(f"arrivals at {rate:g}/s", tuple(asks), None)
