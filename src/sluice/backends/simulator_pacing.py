"""When the simulator's tokens come: after fixed waits, each answer by itself.

`simulator_engine.py` has the other way, in which answers share an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from sluice.backends.engine import Refusal
from sluice.backends.engine.counters import EngineCounters


class Job(NamedTuple):
    """One answer, or several of equal length in step.

    Attributes:
        prompts: what is answered, each a string, a token array or messages.
        prompt_tokens: of all of them.
        limit: the most tokens that were asked for in an answer.
        copies: answers to each.
        words: the tokens of each answer.
        finish_reason: why the answers end.
        priority: lower is earlier.
        salt: whose cache is used.
    """

    prompts: Sequence[Any]
    prompt_tokens: int
    limit: int
    copies: int
    words: Sequence[str]
    finish_reason: Literal["stop", "length"]
    priority: int = 0
    salt: str | None = None

    @property
    def answers(self) -> int:
        """How many answers there are."""
        return self.copies * len(self.prompts)


class Tokens(Protocol):
    """A job's tokens as they come."""

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were found in a cache, when there is one."""
        ...

    async def next(self) -> None:
        """Wait until every answer has its next token."""
        ...

    def close(self) -> None:
        """Generate no more; harmless when all is generated, and when repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Readings:
    """What `/metrics` shows.

    Attributes:
        running: requests that generate.
        waiting: requests that wait for their turn.
        counters: the totals.
        kv_usage: the share of the KV cache in use, where there is one.
        num_blocks: its size, likewise.
        block_size: tokens in a block, likewise.
    """

    running: int
    waiting: int
    counters: EngineCounters
    kv_usage: float | None = None
    num_blocks: int | None = None
    block_size: int | None = None


class Pacing(Protocol):
    """Decides when tokens come."""

    #: The most tokens of prompt and answer that fit; None: no limit of its own.
    longest: int | None
    #: Whether `priority` has a meaning.
    priorities: bool

    def start(self, job: Job) -> Tokens | Refusal:
        """Begin to generate, or say why not."""
        ...

    def readings(self) -> Readings:
        """The present state."""
        ...


@dataclass(slots=True)
class SimulatorCounters:
    """What vLLM's `/metrics` would count."""

    running: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )


class SleepPacing:
    """See `Pacing`: one wait before the first token, and one before each other."""

    longest: int | None = None
    priorities = True

    def __init__(
        self, ttft_seconds: float, itl_seconds: float, counters: SimulatorCounters
    ) -> None:
        self._ttft_seconds = ttft_seconds
        self._itl_seconds = itl_seconds
        self._counters = counters

    def start(self, job: Job) -> Tokens:
        return SleepTokens(job, self._ttft_seconds, self._itl_seconds, self._counters)

    def readings(self) -> Readings:
        counters = self._counters
        totals = EngineCounters(
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            request_success=counters.finished,
        )
        return Readings(counters.running, 0, totals)


class SleepTokens:
    """See `Tokens`; nothing runs, and nothing counts, before the first is waited for."""

    cached_tokens: int | None = None

    def __init__(
        self, job: Job, ttft_seconds: float, itl_seconds: float, counters: SimulatorCounters
    ) -> None:
        self._job = job
        self._ttft_seconds = ttft_seconds
        self._itl_seconds = itl_seconds
        self._counters = counters
        self._answers = job.answers
        self._given = 0
        self._running = False

    async def next(self) -> None:
        counters = self._counters
        if self._given:
            await asyncio.sleep(self._itl_seconds)
        else:
            self._running = True
            counters.running += 1
            counters.prompt_tokens += self._job.prompt_tokens
            await asyncio.sleep(self._ttft_seconds)
        self._given += 1
        counters.generation_tokens += self._answers

    def close(self) -> None:
        if not self._running:
            return
        self._running = False
        counters = self._counters
        counters.running -= 1
        complete = self._given == len(self._job.words)
        counters.finished[self._job.finish_reason if complete else "abort"] += 1
