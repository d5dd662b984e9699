"""Whose turn it is to place long prompts, where several gateways place for one pool.

Gateways learn of each other's dispatches a hint's delay late. Requests that arrive at several of
them within that time would all go to the replica that looks best to all. So time is cut into slots
a little longer than the delay, which belong to the gateways in turn; what one placed in its slot is
known to the next. A prompt waits for its gateway's slot only where computing it takes much
longer than waiting: short ones go at once, and do little harm where they collide.

The clocks have to agree to within a slot. Where they do not, or gateways differ in who is alive,
turns overlap, and placement is as good as without them.
"""

from __future__ import annotations

from collections.abc import Collection

#: The prefill time that makes waiting worth it, in rounds of all gateways.
_WORTH_ROUNDS = 2.0

#: Slots are longer than the delay by this part, so that the last hint of one is there for the next.
_MARGIN = 0.05


class Turns:
    """The slots of one gateway."""

    def __init__(self, gateway: str, hint_seconds: float) -> None:
        """Args:
        gateway: this process's name.
        hint_seconds: how long a hint takes to the other gateways.
        """
        self._gateway = gateway
        self._slot = hint_seconds * (1.0 + _MARGIN)

    def wait(self, peers: Collection[str], prefill_seconds: float, now: float) -> float:
        """How long a prompt should wait until it is placed.

        Args:
            peers: names of the other gateways that are alive.
            prefill_seconds: that computing its uncached part takes.
            now: seconds on the clock that the gateways share.

        Returns:
            Seconds; 0 in one's own slot, for short prompts, and for a single gateway.
        """
        count = len(peers) + 1
        if count == 1 or self._slot <= 0 or prefill_seconds < _WORTH_ROUNDS * count * self._slot:
            return 0.0
        mine = sum(peer < self._gateway for peer in peers)
        slot = int(now / self._slot)
        ahead = (mine - slot) % count
        return (slot + ahead) * self._slot - now if ahead else 0.0
