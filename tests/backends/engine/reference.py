"""A second engine, written to be read: slow, one step at a time, and without shared code.

It follows vLLM's scheduler line by line where the real one follows it in spirit, keeps lists where
that keeps indexes, and counts token by token where that has a formula.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from sluice.backends.engine import EngineConfig, EngineRequest, Load, Output, Policy, Refusal, Step


@dataclass(eq=False)
class Block:
    users: int = 0
    content: Hashable = None
    published: int = 0


@dataclass(eq=False)
class Job:
    request: EngineRequest
    number: int
    tokens: int
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    cached: int = 0
    preemptions: int = 0

    @property
    def generated(self) -> int:
        return self.tokens - self.request.prompt_tokens

    def content(self, index: int) -> Hashable:
        if index < len(self.request.hashes):
            return ("known", self.request.salt, self.request.hashes[index])
        return ("own", self.number, index)


class ReferenceEngine:
    """Same interface as `Engine`, same outcome."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.blocks = [Block() for _ in range(config.num_blocks)]
        self.free = list(self.blocks)
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.aborted: list[Job] = []
        self.batch: list[tuple[Job, int]] = []
        self.preempted: list[str] = []
        self.start = 0.0
        self.load = Load()
        self.due: float | None = None
        self.numbers = 0
        self.published = 0

    @property
    def kv_cache_usage_perc(self) -> float:
        return 1 - len(self.free) / len(self.blocks)

    def submit(self, request: EngineRequest, now: float) -> Refusal | None:
        needed = (request.prompt_tokens + request.output_tokens - 1) / self.config.block_size
        if needed > len(self.blocks):
            return Refusal.TOO_LONG
        unfinished = [*self.running, *self.waiting]
        unfinished = [job for job in unfinished if job not in self.aborted]
        cap = self.config.max_num_queued_reqs
        if cap is not None and len(unfinished) + 1 > cap:
            return Refusal.MAX_NUM_QUEUED_REQS
        cap = self.config.max_num_queued_tokens
        queued = sum(job.request.prompt_tokens for job in unfinished if not job.generated)
        if cap is not None and queued >= cap:
            return Refusal.MAX_NUM_QUEUED_TOKENS
        self.waiting.append(Job(request, self.numbers, request.prompt_tokens))
        self.numbers += 1
        if self.due is None:
            self.due = now
        return None

    def abort(self, request_id: str, now: float) -> bool:
        for job in self.waiting:
            if job.request.id == request_id:
                self.waiting.remove(job)
                if not self.batch and not self.waiting:
                    self.due = None
                return True
        for job in self.running:
            if job.request.id == request_id and job not in self.aborted:
                self.aborted.append(job)
                return True
        return False

    def step(self, now: float) -> Step:
        ended = Step(now, now, 0, [], [], Load())
        if self.batch:
            ended = Step(self.start, now, 1, [], self.preempted, self.load)
        for job in self.aborted:
            self.running.remove(job)
            self.give_back(job)
        for job, tokens in self.batch:
            if job in self.aborted:
                continue
            job.computed += tokens
            if job.computed < job.tokens:
                continue
            first = job.generated == 0
            job.tokens += 1
            reason = None
            if job.generated == job.request.output_tokens:
                reason = job.request.finish_reason
                self.running.remove(job)
                self.give_back(job)
            ended.outputs.append(Output(job.request.id, 1, first, reason, job.cached))
        self.aborted = []
        self.begin(now)
        return ended

    def begin(self, now: float) -> None:
        self.batch, self.preempted, self.start, self.due = [], [], now, None
        while not self.batch and (self.running or self.waiting):
            self.schedule()
        if self.batch:
            self.load = self.counted()
            self.due = now + self.duration()

    def schedule(self) -> None:
        budget = self.config.max_num_batched_tokens
        lost_before = len(self.preempted)
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            tokens = min(job.tokens - job.computed, budget)
            victim = None
            while self.lacking(job, job.computed + tokens) > len(self.free) and victim is not job:
                victim = self.running[-1]
                if self.config.policy is Policy.PRIORITY:
                    victim = max(self.running, key=self.rank)
                if self.running.index(victim) < index:
                    index -= 1
                self.running.remove(victim)
                budget += sum(given for other, given in self.batch if other is victim)
                self.batch = [part for part in self.batch if part[0] is not victim]
                self.give_back(victim)
                victim.computed = 0
                victim.preemptions += 1
                self.waiting.insert(0, victim)
                self.preempted.append(victim.request.id)
            if victim is job:
                break
            self.occupy(job, job.computed + tokens)
            self.batch.append((job, tokens))
            budget -= tokens
            index += 1
        if len(self.preempted) == lost_before:
            self.begin_waiting(budget)

    def begin_waiting(self, budget: int) -> None:
        if self.config.policy is Policy.PRIORITY:
            self.waiting.sort(key=self.rank)
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            job = self.waiting[0]
            found = self.found(job)
            unused = [block for block in found if block.users == 0]
            if self.lacking(job, job.tokens) - len(found) + len(unused) > len(self.free):
                return
            del self.waiting[0]
            for block in found:
                block.users += 1
                if block in self.free:
                    self.free.remove(block)
            job.blocks = found
            job.computed = len(found) * self.config.block_size
            if job.preemptions == 0:
                job.cached = job.computed
            tokens = min(job.tokens - job.computed, budget)
            self.occupy(job, job.computed + tokens)
            self.running.append(job)
            self.batch.append((job, tokens))
            budget -= tokens

    def found(self, job: Job) -> list[Block]:
        found: list[Block] = []
        if not self.config.prefix_caching:
            return found
        while (len(found) + 1) * self.config.block_size <= job.tokens - 1:
            content = job.content(len(found))
            same = [block for block in self.blocks if block.content == content]
            if not same:
                break
            found.append(min(same, key=lambda block: block.published))
        return found

    def lacking(self, job: Job, tokens: int) -> int:
        needed = 0
        while needed * self.config.block_size < tokens:
            needed += 1
        return needed - len(job.blocks)

    def occupy(self, job: Job, tokens: int) -> None:
        for _ in range(self.lacking(job, tokens)):
            block = self.free.pop(0)
            block.users, block.content = 1, None
            job.blocks.append(block)
        if self.config.prefix_caching:
            for index in range(tokens // self.config.block_size):
                if job.blocks[index].content is None:
                    self.published += 1
                    job.blocks[index].content = job.content(index)
                    job.blocks[index].published = self.published

    def give_back(self, job: Job) -> None:
        for block in reversed(job.blocks):
            block.users -= 1
            if block.users == 0 and block.content is None:
                self.free.insert(0, block)
            elif block.users == 0:
                self.free.append(block)
        job.blocks = []

    def counted(self) -> Load:
        load = Load()
        for job, tokens in self.batch:
            before = list(range(job.computed, job.computed + tokens))
            if tokens == 1:
                load.decodes += 1
                load.decode_context += before[0]
            else:
                load.prefill_tokens += tokens
                load.prefill_context += sum(before)
        return load

    def duration(self) -> float:
        pace = self.config.pace
        seconds = pace.step_seconds
        for job, tokens in self.batch:
            if tokens == 1:
                seconds += pace.decode_seconds + job.computed * pace.decode_context_seconds
                continue
            for position in range(job.computed, job.computed + tokens):
                seconds += pace.prefill_token_seconds + position * pace.prefill_context_seconds
        return max(seconds, pace.floor_seconds)

    @staticmethod
    def rank(job: Job) -> tuple[int, float, int]:
        return (job.request.priority, job.request.arrival, job.number)
