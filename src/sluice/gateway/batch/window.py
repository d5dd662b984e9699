"""The window: how many items of a model a worker runs at a time. Pure.

It grows while there is room and shrinks when there is none, as TCP's does: doubling until the
first refusal, then by one with each window of answers; and at a refusal it loses a part. A wait in
a pool's queue is a soft refusal: batch items belong into the room that is free now, and not in
front of it. So what providers' limits and interactive requests leave is used, and given back at
once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Attributes:
    first, most: items at a time, in the beginning and at most.
    decrease: what is left of the window after a refusal.
    patience: seconds in a pool's queue from which on there was no room.
    """

    first: int = 4
    most: int = 128
    decrease: float = 0.7
    patience: float = 0.5


class Window:
    """One model's, at one worker; see the module. Times are seconds."""

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._size = float(min(config.first, config.most))
        self._climbing = True
        self._shrunk = float("-inf")
        self._rests_until = float("-inf")
        self.running = 0
        self.item_seconds = 1.0

    @property
    def size(self) -> int:
        """Items at a time."""
        return int(self._size)

    def room(self, now: float) -> int:
        """How many more items may be begun."""
        return 0 if now < self._rests_until else max(0, self.size - self.running)

    def began(self) -> None:
        """An item begins."""
        self.running += 1

    def released(self) -> None:
        """An item is over and says nothing of the room there is."""
        self.running -= 1

    def answered(self, began: float, now: float, queued: float) -> None:
        """An item has its answer.

        Args:
            began: when it began.
            queued: seconds that it waited in the queue of a pool.
        """
        used = 2 * self.running > self.size
        self.running -= 1
        self.item_seconds += 0.1 * (now - began - self.item_seconds)
        if queued > self._config.patience:
            self._shrink(began, now)
        elif used:  # room that nobody needs says nothing of more
            step = 1.0 if self._climbing else 1.0 / self._size
            self._size = min(self._config.most, self._size + step)

    def refused(self, began: float, now: float, rest: float) -> None:
        """There was no room for an item.

        Args:
            began: when it began.
            rest: seconds until there may be room.
        """
        self.running -= 1
        self._rests_until = max(self._rests_until, now + rest)
        self._shrink(began, now)

    def _shrink(self, began: float, now: float) -> None:
        """Once for all items that began before it was known."""
        self._climbing = False
        if began >= self._shrunk:
            self._size = max(1.0, self._size * self._config.decrease)
            self._shrunk = now
