"""What a gateway leaves to the others that send to the same replicas."""

from __future__ import annotations

from sluice.router.pool.capacity import Capacity
from sluice.router.pool.load import LoadBook
from sluice.router.pool.queue_request import Tier


class GatewayShare:
    """One gateway's, by what it knows of the others."""

    def __init__(self, loads: LoadBook, capacity: Capacity) -> None:
        """Args:
        loads: of the replicas, and the other gateways' queues.
        capacity: of the replicas.
        """
        self._loads = loads
        self._capacity = capacity

    @property
    def gateways(self) -> int:
        """How many share the replicas, this one included."""
        return 1 + len(self._loads.peers)

    def used(self) -> bool:
        """Whether others wait while this one has its share of the room already: it sees first that
        its own requests leave room, and would never let the others in."""
        rivals = self._loads.rivals
        if not rivals or self._capacity.policy is None:
            return False
        return self._loads.own_prefill_tokens >= self._capacity.room / (rivals + 1)

    def stands_back(self, tier: Tier) -> bool:
        """Whether interactive requests wait elsewhere, which batch requests do not pass."""
        return tier == "batch" and self._loads.urgent_elsewhere > 0
