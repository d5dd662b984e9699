"""What the scheduler is asked, and what it wants done."""

from __future__ import annotations

import msgspec

from sluice.router.pool.fair_queue import Shed
from sluice.router.pool.placement import Decision, Prompt
from sluice.router.pool.queue_request import Priority, QueueRequest, Tier


class PoolRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for a pool.

    Attributes:
        id: unique among those that wait or run.
        prompt: what placement knows of it.
        output_tokens: that it may generate at most.
        team: who is charged for the service.
        weight: the team's share relative to others'.
        priority: before or after others of its tier.
        tier: batch fills what interactive leaves.
        slo: seconds to its first token; None: it waits for ever.
    """

    id: str
    prompt: Prompt
    output_tokens: int
    team: str = "default"
    weight: float = 1.0
    priority: Priority = "normal"
    tier: Tier = "interactive"
    slo: float | None = None

    @property
    def context_tokens(self) -> int:
        """The KV cache that it may come to hold."""
        return self.prompt.tokens + self.output_tokens

    def queued(self, work: int, now: float) -> QueueRequest:
        """The request as the queue sees it.

        Args:
            work: tokens of its prompt that a replica will probably have to compute.
            now: seconds.
        """
        return QueueRequest(
            self.id,
            self.team,
            self.prompt.tokens,
            work,
            self.priority,
            self.tier,
            self.slo,
            self.weight,
            now,
        )


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send it there now."""

    request: PoolRequest
    decision: Decision


class Yield(msgspec.Struct, frozen=True, gc=False):
    """Abort this request at its replica, for others: it waits again, and is dispatched anew."""

    request: str
    replica: str


Action = Dispatch | Yield | Shed
