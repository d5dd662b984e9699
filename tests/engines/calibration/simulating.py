"""How long the simulated engine takes for the same, and what its steps computed meanwhile."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from sluice.backends.engine import Engine, EngineConfig, EngineRequest, Step
from sluice.backends.simulator_words import block_hashes
from tests.engines.calibration.loads import Load
from tests.engines.calibration.measuring import Timing

Vector = NDArray[np.float64]

#: The pace's linear terms, in the order of the vectors here.
TERMS = (
    "step_seconds",
    "prefill_token_seconds",
    "prefill_context_seconds",
    "decode_seconds",
    "decode_context_seconds",
    "request_seconds",
    "request_token_seconds",
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """One request's times, and what they are made of.

    Attributes:
        timing: the times.
        first: how much of each term is in the time to first token.
        gaps: how much of each term is in each time between tokens.
    """

    timing: Timing
    first: Vector
    gaps: list[Vector]


def simulate(config: EngineConfig, load: Load, served: bool = False) -> list[Simulated]:
    """Put a load on a simulated engine.

    Args:
        config: the engine.
        load: what is asked.
        served: whether a server is between: who answers the end of one request with the next is
            too late for the step that begins then.

    Returns:
        One result for each request, in the load's order.
    """
    run = _Run(config, load, served)
    run.to_the_end()
    return [run.result(number) for number in range(len(load.asks))]


class _Run:
    def __init__(self, config: EngineConfig, load: Load, served: bool) -> None:
        self._served = served
        self._engine = Engine(config, one_by_one=True)
        self._load = load
        self._left = deque(range(len(load.asks)))
        self._steps: list[Step] = []
        self._sent: dict[int, float] = {}
        self._tokens: dict[int, list[int]] = {number: [] for number in self._left}
        self._cached: dict[int, int] = {}

    def to_the_end(self) -> None:
        for _ in range(self._load.concurrency or 0):
            self._send_next(0.0)
        is_open = self._load.concurrency is None
        while self._left or self._engine.due is not None:
            due = inf if self._engine.due is None else self._engine.due
            comes = self._load.asks[self._left[0]].at if is_open and self._left else inf
            if comes <= due:
                self._send_next(comes)
            else:
                self._step(due)

    def _send_next(self, now: float) -> None:
        if not self._left:
            return
        number = self._left.popleft()
        ask = self._load.asks[number]
        hashes = block_hashes([str(token) for token in ask.prompt], self._engine.config.block_size)
        request = EngineRequest(str(number), len(ask.prompt), ask.output, hashes)
        assert self._engine.submit(request, now) is None
        self._sent[number] = now

    def _step(self, now: float) -> None:
        step = self._engine.end(now)
        if self._served:
            self._engine.begin(now)
        if step.steps:
            self._steps.append(step)
        for output in step.outputs:
            number = int(output.id)
            self._tokens[number].append(len(self._steps) - 1)
            self._cached[number] = output.cached_tokens
            if output.finish_reason and self._load.concurrency is not None:
                self._send_next(now)
        if not self._served:
            self._engine.begin(now)

    def result(self, number: int) -> Simulated:
        ask, sent, tokens = self._load.asks[number], self._sent[number], self._tokens[number]
        lag = self._engine.config.pace.overhead(len(ask.prompt))
        times = tuple(self._steps[index].end + lag for index in tokens)
        first = np.array([0.0, 0, 0, 0, 0, 1, len(ask.prompt)])
        for step in self._steps[: tokens[0] + 1]:
            # Of a step that was under way when it came, it waits for what is left.
            waited = min(1.0, (step.end - sent) / step.duration)
            if waited > 0:
                first += waited * _terms(step)
        gaps = [
            sum(map(_terms, self._steps[before + 1 : after + 1]), _NONE)
            for before, after in pairwise(tokens)
        ]
        return Simulated(Timing(sent, times, self._cached[number]), first, gaps)


_NONE: Vector = np.zeros(len(TERMS))


def _terms(step: Step) -> Vector:
    load = step.load
    return np.array(
        [
            1.0,
            load.prefill_tokens,
            load.prefill_context,
            load.decodes,
            load.decode_context,
            0,
            0,
        ]
    )
