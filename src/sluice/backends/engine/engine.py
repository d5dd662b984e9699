"""The engine's loop in virtual time.

    engine.submit(request, now)     at any time: it is in the first step that begins then or later
    engine.due                      when the step that is under way ends; None: nothing to do
    engine.step(engine.due)         ends that step and begins the next one

While nothing changes but that running requests get a token each, many steps are taken at once, up
to the next one that finishes a request. A request that is submitted or aborted meanwhile cuts them
short at the end of the step that is under way, so that the outcome is the same as one by one; read
`due` again after each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sluice.backends.engine.config import EngineConfig
from sluice.backends.engine.counters import EngineCounters
from sluice.backends.engine.kv_cache import KVCache
from sluice.backends.engine.pace import Load
from sluice.backends.engine.request import EngineRequest, Progress, Refusal
from sluice.backends.engine.scheduler import Batch, Scheduler


class Output(NamedTuple):
    """What a request got.

    Attributes:
        id: the request.
        tokens: tokens of its answer, one for each of the `steps`; one less if it was aborted in the
            last of them.
        first: whether the answer's first token is among them.
        finish_reason: "stop" or "length" when these are the last.
        cached_tokens: tokens of its prompt that were found in the cache.
    """

    id: str
    tokens: int
    first: bool
    finish_reason: str | None
    cached_tokens: int


class Step(NamedTuple):
    """A step that ended, or several like it.

    Attributes:
        start: when the first began, in seconds.
        end: when the last ended.
        steps: how many they were.
        outputs: what came out; requests within their prompt have none.
        preempted: ids of the requests that lost their blocks when it began.
        load: what the first of them computed.
    """

    start: float
    end: float
    steps: int
    outputs: list[Output]
    preempted: list[str]
    load: Load

    @property
    def duration(self) -> float:
        """Seconds from begin to end."""
        return self.end - self.start


@dataclass(slots=True)
class _UnderWay:
    batch: Batch
    load: Load
    start: float
    end: float
    count: int


class Engine:
    """One replica.

    Args:
        config: its sizes and speed.
        one_by_one: never take several steps at once, for a server that streams each token.
    """

    def __init__(self, config: EngineConfig, one_by_one: bool = False) -> None:
        self.config = config
        self.counters = EngineCounters()
        self._one_by_one = one_by_one
        self._cache = KVCache(config.num_blocks, config.block_size, config.prefix_caching)
        self._scheduler = Scheduler(config, self._cache, self.counters)
        self._requests: dict[str, Progress] = {}
        self._number = 0
        self._queued_tokens = 0
        self._aborted: list[Progress] = []
        self._step: _UnderWay | None = None
        self._wake: float | None = None

    @property
    def due(self) -> float | None:
        """When `step` is to be called next, in seconds; None while there is nothing to do."""
        return self._wake if self._step is None else self._step.end

    @property
    def num_requests_running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def num_requests_waiting(self) -> int:
        """Requests without a place in it."""
        return len(self._scheduler.waiting)

    @property
    def kv_cache_usage_perc(self) -> float:
        """The share of the blocks that requests hold, 0 to 1."""
        return self._cache.usage

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of requests that have had no token yet."""
        return self._queued_tokens

    def submit(self, request: EngineRequest, now: float) -> Refusal | None:
        """Take in a request, or say why not.

        Args:
            request: what is asked for; its id is not in use.
            now: the time, in seconds, not before the last step's begin.
        """
        refusal = self._refusal(request)
        if refusal is not None:
            if refusal is not Refusal.TOO_LONG:
                self.counters.admission_rejections[refusal] += 1
            return refusal
        progress = Progress(request, self._number)
        self._number += 1
        self._requests[request.id] = progress
        self._queued_tokens += request.prompt_tokens
        self._scheduler.waiting.add(progress)
        self._cut(now)
        if self._step is None and self._wake is None:
            self._wake = now
        return None

    def abort(self, request_id: str, now: float) -> bool:
        """Forget a request whose client left; the step that it is in still takes its time.

        Returns:
            Whether the request was unfinished.
        """
        progress = self._requests.pop(request_id, None)
        if progress is None:
            return False
        self.counters.request_success["abort"] += 1
        if not progress.generated:
            self._queued_tokens -= progress.request.prompt_tokens
        # Cut also where it only waited: who is behind it may find room where it found none.
        self._cut(now)
        if progress.running:
            progress.aborted = True
            self._aborted.append(progress)
        else:
            self._scheduler.leave(progress)
            if not self._requests and self._step is None:
                self._wake = None
        return True

    def step(self, now: float) -> Step:
        """End the step that is under way, and begin the next one.

        Args:
            now: the time, in seconds: `due`, or later in an engine that lags behind.
        """
        ended = self.end(now)
        self.begin(now)
        return ended

    def end(self, now: float) -> Step:
        """End the step that is under way, for a caller who has something to add at that moment.

        Args:
            now: as `step` takes it; `begin` follows with the same.
        """
        under_way, self._step = self._step, None
        return Step(now, now, 0, [], [], Load()) if under_way is None else self._end(under_way)

    def begin(self, now: float) -> None:
        """Begin the next step, if there is something to do."""
        self._step = self._begin(now)
        self._wake = None

    def _refusal(self, request: EngineRequest) -> Refusal | None:
        config = self.config
        # The answer's last token is never computed again, and so needs no place.
        if not self._cache.fits(request.prompt_tokens + request.output_tokens - 1):
            return Refusal.TOO_LONG
        most = config.max_num_queued_reqs
        if most is not None and len(self._requests) >= most:
            return Refusal.MAX_NUM_QUEUED_REQS
        most = config.max_num_queued_tokens
        if most is not None and self._queued_tokens >= most:
            return Refusal.MAX_NUM_QUEUED_TOKENS
        return None

    def _begin(self, now: float) -> _UnderWay | None:
        batch = self._scheduler.schedule()
        if not batch.parts:
            return None
        load = Load()
        for progress, tokens in batch.parts:
            load.add(progress.computed, tokens)
        count = 1 if self._one_by_one else self._equal_steps(batch, load)
        return _UnderWay(batch, load, now, now + self.config.pace.duration(load, count), count)

    def _equal_steps(self, batch: Batch, load: Load) -> int:
        """How many steps are as this one: one token for each, nobody done before the last.

        Whoever waits has no place or no blocks, and has none after such a step either.
        """
        scheduler = self._scheduler
        if load.prefill_tokens or batch.preempted or len(batch.parts) < len(scheduler.running):
            return 1
        count = min(
            progress.request.output_tokens - progress.generated for progress, _ in batch.parts
        )
        if any(not progress.generated for progress, _ in batch.parts):
            return 1
        while count > 1 and not self._room(batch, count):
            count //= 2
        return count

    def _room(self, batch: Batch, count: int) -> bool:
        """Whether the blocks suffice for `count` steps."""
        shortage = self._cache.shortage
        needed = sum(shortage(progress, progress.computed + count) for progress, _ in batch.parts)
        return needed <= self._cache.pool.free

    def _cut(self, now: float) -> None:
        """Let the steps under way end with the one that `now` is in."""
        step = self._step
        if step is None or step.count == 1:
            return
        pace = self.config.pace
        count = pace.steps_within(step.load, step.count, now - step.start)
        if count < step.count:
            step.count = count
            step.end = step.start + pace.duration(step.load, count)

    def _end(self, step: _UnderWay) -> Step:
        outputs = []
        steps = step.count
        if steps > 1:
            for progress, _ in step.batch.parts:
                self._cache.grow(progress, progress.computed + steps)
        for progress in self._aborted:
            self._scheduler.leave(progress)
            if steps > 1:
                # It left in the last of them.
                outputs.append(self._emit(progress, steps - 1))
        self._aborted.clear()
        for progress, tokens in step.batch.parts:
            if progress.aborted:
                continue
            progress.computed += tokens if steps == 1 else steps
            if progress.computed >= progress.length:
                outputs.append(self._emit(progress, steps))
        preempted = [progress.request.id for progress in step.batch.preempted]
        return Step(step.start, step.end, steps, outputs, preempted, step.load)

    def _emit(self, progress: Progress, count: int) -> Output:
        """Give a request its tokens, and let it go with its last one."""
        request, counters = progress.request, self.counters
        first = not progress.generated
        if first:
            counters.prompt_tokens += request.prompt_tokens
            self._queued_tokens -= request.prompt_tokens
        progress.generated += count
        counters.generation_tokens += count
        reason = None
        if progress.generated >= request.output_tokens:
            reason = request.finish_reason
            counters.request_success[reason] += 1
            del self._requests[request.id]
            self._scheduler.leave(progress)
        return Output(request.id, count, first, reason, progress.cached_tokens)
