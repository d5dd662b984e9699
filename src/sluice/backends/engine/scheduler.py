"""One step: who gets how many tokens, and who loses its blocks for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.backends.engine.config import EngineConfig, Policy
from sluice.backends.engine.counters import EngineCounters
from sluice.backends.engine.kv_cache import KVCache
from sluice.backends.engine.request import Progress
from sluice.backends.engine.waiting import create_waiting


@dataclass(slots=True)
class Batch:
    """What one step computes.

    Attributes:
        parts: requests, and how many tokens each gets.
        preempted: requests that lost their blocks for it.
    """

    parts: list[tuple[Progress, int]] = field(default_factory=list)
    preempted: list[Progress] = field(default_factory=list)


class Scheduler:
    """Continuous batching with chunked prefill; see vLLM's `sched/scheduler.py`.

    Running requests come first, in the order in which they began; then waiting ones, as long as
    there are tokens, places and blocks. There is no difference between prefill and decode: each
    request gets what it lacks, as far as the step's budget goes.
    """

    def __init__(self, config: EngineConfig, cache: KVCache, counters: EngineCounters) -> None:
        self._config = config
        self._cache = cache
        self._counters = counters
        self.running: list[Progress] = []
        self.waiting = create_waiting(config.policy)

    def schedule(self) -> Batch:
        """The next step, which is empty only if nothing is to be done."""
        batch = Batch()
        while self.running or self.waiting:
            preempted = len(batch.preempted)
            budget = self._continue_running(batch, self._config.max_num_batched_tokens)
            if len(batch.preempted) == preempted:
                self._begin_waiting(batch, budget)
            if batch.parts:
                break
        return batch

    def leave(self, progress: Progress) -> None:
        """Take a request out, wherever it is."""
        if progress.running:
            self.running.remove(progress)
            progress.running = False
            self._cache.release(progress)
        else:
            self.waiting.remove(progress)

    def _continue_running(self, batch: Batch, budget: int) -> int:
        """Give the running requests theirs; return what is left of the budget."""
        index = 0
        running, parts, grow = self.running, batch.parts, self._cache.grow
        while index < len(running) and budget > 0:
            progress = running[index]
            computed = progress.computed
            tokens = min(progress.request.prompt_tokens + progress.generated - computed, budget)
            while not grow(progress, computed + tokens):
                victim = self._victim()
                position = running.index(victim)
                if position < index:
                    index -= 1
                    given = next(part for part in parts if part[0] is victim)
                    parts.remove(given)
                    budget += given[1]
                self._preempt(victim)
                batch.preempted.append(victim)
                if victim is progress:
                    return budget
            parts.append((progress, tokens))
            budget -= tokens
            index += 1
        return budget

    def _begin_waiting(self, batch: Batch, budget: int) -> None:
        running, waiting = self.running, self.waiting
        while waiting and budget > 0 and len(running) < self._config.max_num_seqs:
            progress = waiting.first()
            prefix = self._cache.prefix(progress)
            found = len(prefix) * self._config.block_size
            tokens = min(progress.length - found, budget)
            if not self._cache.admit(progress, prefix, tokens):
                return
            waiting.pop()
            progress.running = True
            running.append(progress)
            if not progress.preemptions and self._config.prefix_caching:
                progress.cached_tokens = found
                self._counters.prefix_cache_queries += progress.length
                self._counters.prefix_cache_hits += found
            batch.parts.append((progress, tokens))
            budget -= tokens

    def _victim(self) -> Progress:
        """Who loses its blocks when they are short."""
        if self._config.policy is Policy.PRIORITY:
            return max(self.running, key=lambda progress: progress.rank)
        return self.running[-1]

    def _preempt(self, progress: Progress) -> None:
        self.running.remove(progress)
        progress.running = False
        progress.preemptions += 1
        self._cache.release(progress)
        self._counters.num_preemptions += 1
        self.waiting.put_back(progress)
