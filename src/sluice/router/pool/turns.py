"""Whose turn it is to place long prompts, where several gateways place for one pool.

Gateways learn of each other's dispatches a hint's delay late. Requests that arrive at several of
them within that time would all go to the replica that looks best to all. So time is cut into slots
that belong to the gateways in turn, and a gateway places long prompts at the beginning of its slots
only: what it did is known to the next one when its slot begins. Short prompts go at once, and do
little harm where they collide; long is what takes much longer to compute than to wait.

The clocks have to agree to within a slot. Where they do not, or gateways differ in who is alive,
turns overlap, and placement is as good as without them.
"""

from __future__ import annotations

from collections.abc import Collection

#: The prefill time that makes waiting worth it, in rounds of all gateways.
_WORTH_ROUNDS = 2.0

#: The beginning of a slot in which its owner may place, as a part of the delay; and what the slot
#: is longer than this and the delay, so that the last hint is there in time.
_WINDOW, _MARGIN = 0.2, 0.05


class Turns:
    """The slots of one gateway."""

    def __init__(self, gateway: str, hint_seconds: float) -> None:
        """Args:
        gateway: this process's name.
        hint_seconds: how long a hint takes to the other gateways.
        """
        self._gateway = gateway
        self._window = hint_seconds * _WINDOW
        self._slot = hint_seconds * (1.0 + _WINDOW + _MARGIN)

    def wait(self, peers: Collection[str], prefill_seconds: float, now: float) -> float:
        """How long a prompt should wait until it is placed.

        Args:
            peers: names of the other gateways that are alive.
            prefill_seconds: that computing its uncached part takes.
            now: seconds on the clock that the gateways share.

        Returns:
            Seconds; 0 at the beginning of one's own slot, for short prompts, and for a single
            gateway.
        """
        count = len(peers) + 1
        if count == 1 or self._slot <= 0 or prefill_seconds < _WORTH_ROUNDS * count * self._slot:
            return 0.0
        mine = sum(peer < self._gateway for peer in peers)
        slot, into = divmod(now, self._slot)
        ahead = (mine - int(slot)) % count
        if ahead == 0:
            if into <= self._window:
                return 0.0
            ahead = count
        return ahead * self._slot - into
