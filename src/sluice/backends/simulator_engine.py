"""When the simulator's tokens come: as an engine that all answers share makes them.

The engine of `backends/engine` runs in virtual time; here its steps are taken at the event loop's
pace, by a timer that is set whenever it has something to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from sluice.backends.engine import Engine, EngineConfig, EngineRequest, Policy, Refusal
from sluice.backends.simulator_pacing import Job, Readings, Tokens
from sluice.backends.simulator_words import block_hashes, words_of

#: A process that was held up makes up for this many seconds of steps; the rest is lost time.
CATCH_UP_SECONDS = 0.1


class EnginePacing:
    """See `Pacing`."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config, one_by_one=True)
        self._numbers = count()
        self._tokens: dict[str, EngineTokens] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.longest: int | None = config.num_blocks * config.block_size
        self.priorities = config.policy is Policy.PRIORITY

    def start(self, job: Job) -> Tokens | Refusal:
        now = asyncio.get_running_loop().time()
        requests = list(self._requests(job, now))
        lag = self._engine.config.pace.overhead(job.prompt_tokens)
        tokens = EngineTokens(self, [request.id for request in requests], job.copies, lag)
        for request in requests:
            refusal = self._engine.submit(request, now)
            if refusal is not None:
                tokens.close()
                return refusal
            self._tokens[request.id] = tokens
        self._set_timer()
        return tokens

    def abort(self, request_id: str) -> None:
        """Forget a request, if the engine still has it."""
        if self._tokens.pop(request_id, None) is not None:
            self._engine.abort(request_id, asyncio.get_running_loop().time())
            self._set_timer()

    def readings(self) -> Readings:
        engine = self._engine
        return Readings(
            engine.num_requests_running,
            engine.num_requests_waiting,
            engine.counters,
            engine.kv_cache_usage_perc,
            engine.config.num_blocks,
            engine.config.block_size,
        )

    def _requests(self, job: Job, now: float) -> Iterator[EngineRequest]:
        answer = [word.strip() for word in job.words]
        for prompt in job.prompts:
            words = list(words_of(prompt)) or [""]
            hashes = block_hashes([*words, *answer], self._engine.config.block_size)
            for _ in range(job.copies):
                yield EngineRequest(
                    str(next(self._numbers)),
                    len(words),
                    len(answer),
                    hashes,
                    job.priority,
                    job.salt,
                    now,
                    job.finish_reason,
                )

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._engine.due
        if due is None:
            self._timer = None
        else:
            self._timer = asyncio.get_running_loop().call_at(due, self._step)

    def _step(self) -> None:
        """Take the steps that are due."""
        now = asyncio.get_running_loop().time()
        while (due := self._engine.due) is not None and due <= now:
            # From when the last one was due, not from now: a timer's delays do not add up.
            step = self._engine.step(max(due, now - CATCH_UP_SECONDS))
            for output in step.outputs:
                tokens = self._tokens[output.id]
                if output.finish_reason is not None:
                    del self._tokens[output.id]
                tokens.deliver(output.id, step.end, output.cached_tokens)
        self._set_timer()


class EngineTokens:
    """See `Tokens`; generated whether they are waited for or not.

    Args:
        pacing: whose they are.
        ids: the engine's requests, the copies of a prompt beside each other.
        copies: how many answers a prompt has.
        lag: how long after the engine a token arrives, in seconds.
    """

    def __init__(self, pacing: EnginePacing, ids: Sequence[str], copies: int, lag: float) -> None:
        self._pacing = pacing
        self._given = dict.fromkeys(ids, 0)
        self._found = dict.fromkeys(ids[::copies], 0)
        self._lag = lag
        self._complete = 0
        self._times: deque[float] = deque()
        self._arrival = asyncio.Event()

    @property
    def cached_tokens(self) -> int | None:
        return sum(self._found.values())

    def deliver(self, request_id: str, at: float, found: int) -> None:
        """Take one token of a request, made at a time."""
        self._given[request_id] += 1
        if request_id in self._found:
            self._found[request_id] = found
        if min(self._given.values()) > self._complete:
            self._complete += 1
            self._times.append(at + self._lag)
            self._arrival.set()

    async def next(self) -> None:
        while not self._times:
            self._arrival.clear()
            await self._arrival.wait()
        early = self._times.popleft() - asyncio.get_running_loop().time()
        if early > 0:
            await asyncio.sleep(early)

    def close(self) -> None:
        for request_id in self._given:
            self._pacing.abort(request_id)
