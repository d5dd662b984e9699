"""How much a replica may have outstanding, so that the queue is in the gateway, where it is fair.

A bound has two parts.

What the replica can hold is declared: sequences in a batch, its own queue cap, KV cache.

How deep its prefill queue may be is learnt, in tokens: the rate at which it is seen to compute
prompts, times the seconds of queue that it is allowed, and at least what one step of the engine
computes. That is little: what waits at a replica waits in the order of arrival, and a team that
sends too much would make all others wait there. So that the replica does not run dry between two
long prompts, one more may go a moment before it is through with those that it has, judging by the
same rate. The rate is tokens of first tokens seen over the time that the replica was busy with
them, so that a batch whose first tokens come together counts once. A rate in tokens says at once
what a long prompt costs, which a concurrency limit learnt from latency (AIMD, gradient) finds out
only by being late.

The rate cannot see what does not grow with tokens: decoding that crowds the batch, a slow
neighbour, a clock that throttles. So the seconds allowed are themselves controlled by additive
increase and multiplicative decrease on the measured time to the first token against its target:
a tenth less for each miss, at most one in the time that the change takes to show; a hundredth
more of the whole for each first token in time. AIMD is the rule under which several gateways
that control the same replica come to equal shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.router.pool.load import Load
from sluice.router.pool.rate import FadingRate

#: Time constant in seconds with which old observations of the rate fade.
_MEMORY_SECONDS = 30.0

#: A prompt of less than this part of a step takes a step's time, whatever its length: it says
#: nothing of the rate.
_TELLING = 1 / 16

_DECREASE, _INCREASE, _LEAST = 0.9, 0.01, 0.1


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What a replica declares when it joins.

    Attributes:
        kv_blocks: blocks of prefix cache, in the pool's block size.
        block_tokens: tokens in such a block.
        max_running: sequences that it batches.
        max_queued: requests that it queues by itself before it refuses.
        prefill_rate: tokens a second that are assumed until the rate has been seen.
        step_tokens: prompt tokens that one step of the engine computes.
    """

    kv_blocks: int
    block_tokens: int
    max_running: int = 256
    max_queued: int = 64
    prefill_rate: float = 8_000.0
    step_tokens: int = 2_048


@dataclass(frozen=True, slots=True)
class BoundPolicy:
    """How deep the queues at replicas may be.

    Attributes:
        ttft_target: seconds to the first token that dispatched requests should see.
        depth: part of the target that the replica's own queue may take.
        lead: seconds before a replica runs dry at which it gets its next prompt.
    """

    ttft_target: float
    depth: float = 0.125
    lead: float = 0.01


class ReplicaBound:
    """The bound of one replica, learning."""

    def __init__(self, limits: ReplicaLimits, policy: BoundPolicy | None) -> None:
        """Args:
        limits: declared by the replica.
        policy: None: only the declared limits bound it.
        """
        self.limits = limits
        self._policy = policy
        self._allowed = 1.0
        #: Prompt tokens a second, as seen.
        self.prefill_rate = limits.prefill_rate
        self._rate = FadingRate(limits.prefill_rate, _MEMORY_SECONDS)
        self._last_first_token = 0.0
        self._since = 0.0
        self._last_decrease = float("-inf")

    @property
    def queue_seconds(self) -> float:
        """Seconds of prefill that may be outstanding; infinite without a policy."""
        policy = self._policy
        if policy is None:
            return float("inf")
        return policy.ttft_target * policy.depth * self._allowed

    @property
    def room(self) -> float:
        """Prefill tokens that may be outstanding."""
        return max(self.limits.step_tokens, self.prefill_rate * self.queue_seconds)

    def began(self, now: float) -> None:
        """The replica has made progress up to now, or was idle."""
        self._since = now

    def opens(self, load: Load) -> float:
        """When it will be almost through with its prefill, in seconds, if nothing else comes."""
        lead = self._policy.lead if self._policy is not None else 0.0
        return self._since + load.queued_prefill_tokens / self.prefill_rate - lead

    def admits(
        self,
        load: Load,
        prefill_tokens: int,
        context_tokens: int,
        part: float,
        now: float,
    ) -> bool:
        """Whether the replica may take one more request.

        An idle replica takes any, however large: it would wait for ever otherwise.

        Args:
            load: what is outstanding there.
            prefill_tokens: of the request that are not cached there.
            context_tokens: prompt and output of the request together.
            part: of the room that it may fill; below 1 it leaves the rest to others.
            now: seconds.
        """
        if load.weight <= 0:
            return False
        if load.running == 0:
            return True
        limits, policy = self.limits, self._policy
        if policy is None:
            return load.running < limits.max_running + limits.max_queued
        share = load.weight * part
        if load.running >= limits.max_running * share:
            return False
        if load.context_tokens + context_tokens > limits.kv_blocks * limits.block_tokens * share:
            return False
        queued = load.queued_prefill_tokens
        if part < 1:  # in front of others is no more of what leaves room than the step under way
            return queued == 0 or queued + prefill_tokens <= limits.step_tokens * share
        if queued == 0 or queued + prefill_tokens <= self.room * share:
            return True
        return load.weight >= 1.0 and self.opens(load) <= now

    def first_token(self, now: float, dispatched: float, prefill_tokens: int) -> None:
        """Learn from a first token.

        Args:
            now: when it came, seconds.
            dispatched: when its request went to the replica.
            prefill_tokens: that the replica computed for it.
        """
        busy = max(0.0, now - max(dispatched, self._last_first_token))
        self._last_first_token = max(now, self._last_first_token)
        self.began(now)
        if prefill_tokens >= _TELLING * self.limits.step_tokens:
            self._rate.add(prefill_tokens, busy)
            self.prefill_rate = self._rate.value
        if self._policy is None:
            return
        # A prompt that takes longer than the target by itself says nothing of the queue.
        target = max(self._policy.ttft_target, 2 * prefill_tokens / self.prefill_rate)
        if now - dispatched <= target:
            self._allowed = min(1.0, self._allowed + _INCREASE)
        elif dispatched > self._last_decrease:
            # Only requests sent under the last bound say anything of it.
            self._allowed = max(_LEAST, self._allowed * _DECREASE)
            self._last_decrease = now
