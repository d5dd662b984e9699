"""What room the replicas of a pool have, all together: their bounds, kept by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.router.pool.bounds import BoundPolicy, ReplicaBound, ReplicaLimits
from sluice.router.pool.load import Load
from sluice.router.pool.placement import Prompt


class Capacity:
    """The bounds of a pool's replicas."""

    def __init__(self, policy: BoundPolicy | None) -> None:
        """Args:
        policy: of all bounds; None: only what the replicas declare bounds them.
        """
        self.policy = policy
        self._bounds: dict[str, ReplicaBound] = {}
        self._rates: dict[str, float] = {}
        #: Prompt tokens a second that the replicas compute together.
        self.rate = 0.0
        #: Requests that they batch together.
        self.sequences = 0

    def __getitem__(self, replica: str) -> ReplicaBound:
        """The bound of a replica."""
        return self._bounds[replica]

    def __contains__(self, replica: str) -> bool:
        """Whether the replica is known."""
        return replica in self._bounds

    def join(self, load: Load, limits: ReplicaLimits) -> None:
        """A replica is there."""
        self._bounds[load.replica] = ReplicaBound(limits, self.policy)
        self.sequences += limits.max_running
        self.reckon(load)

    def leave(self, replica: str) -> None:
        """A replica is gone; an unknown one is ignored."""
        if (bound := self._bounds.pop(replica, None)) is not None:
            self.sequences -= bound.limits.max_running
        self.rate -= self._rates.pop(replica, 0.0)

    def reckon(self, load: Load) -> None:
        """A replica's rate or weight changed."""
        rate = self._bounds[load.replica].prefill_rate * load.weight
        self.rate += rate - self._rates.get(load.replica, 0.0)
        self._rates[load.replica] = rate

    @property
    def room(self) -> float:
        """Prefill tokens that may be outstanding at all replicas together."""
        return sum(bound.room for bound in self._bounds.values())

    def with_room(
        self,
        loads: Iterable[Load],
        prompt: Prompt,
        depths: Mapping[str, int],
        context_tokens: int,
        part: float,
        now: float,
    ) -> list[Load]:
        """The replicas that may take a request now.

        Args:
            loads: of all replicas.
            prompt: of the request.
            depths: leading blocks that each replica has.
            context_tokens: prompt and output of the request together.
            part: of the room that it may fill.
            now: seconds.
        """
        bounds, depth_of = self._bounds, depths.get
        tokens, block_tokens = prompt.tokens, prompt.block_tokens
        return [
            load
            for load in loads
            if bounds[load.replica].admits(
                load,
                tokens - depth_of(load.replica, 0) * block_tokens,
                context_tokens,
                part,
                now,
            )
        ]

    def opens_after(self, loads: Iterable[Load], now: float) -> float | None:
        """When the next replica will be almost through with its prefill, in seconds."""
        bounds = self._bounds
        times = (bounds[load.replica].opens(load) for load in loads)
        return min((time for time in times if time > now), default=None)

    def service_seconds(self, loads: Iterable[Load], work: int) -> float:
        """From a dispatch to its first token, where that is shortest.

        Args:
            loads: of all replicas.
            work: prompt tokens to compute.
        """
        least = float("inf")
        for load in loads:
            bound = self._bounds[load.replica]
            queued = min(load.queued_prefill_tokens, bound.room)
            least = min(least, (queued + work) / bound.prefill_rate)
        return least if self._bounds else 0.0

    def prefill_seconds(self, work: int) -> float:
        """How long a replica computes so many tokens, on average."""
        return work * len(self._bounds) / self.rate if self.rate > 0 else 0.0
