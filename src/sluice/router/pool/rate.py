"""Rates that fade: tokens over the seconds they took, both forgotten in the same measure."""

from __future__ import annotations

from math import exp


class FadingRate:
    """Tokens a second, mostly of late."""

    def __init__(self, assumed: float, memory: float) -> None:
        """Args:
        assumed: until something was seen; it weighs as much as one second of seeing.
        memory: time constant of forgetting, in seconds.
        """
        self._tokens = assumed
        self._seconds = 1.0
        self._memory = memory

    @property
    def value(self) -> float:
        """Tokens a second."""
        return self._tokens / self._seconds

    def add(self, tokens: float, seconds: float) -> None:
        """Tokens that took so many seconds."""
        fade = exp(-seconds / self._memory)
        self._tokens = self._tokens * fade + tokens
        self._seconds = max(1e-6, self._seconds * fade + seconds)


class Drain:
    """How fast something leaves the queue while it is not empty there."""

    def __init__(self, memory: float) -> None:
        """Args:
        memory: time constant of forgetting, in seconds.
        """
        self._memory = memory
        self._rate: FadingRate | None = None
        self._since: float | None = None

    @property
    def rate(self) -> float:
        """Work tokens a second; infinite while none has left."""
        return float("inf") if self._rate is None else self._rate.value

    def begin(self, now: float) -> None:
        """Something waits, perhaps since long."""
        if self._since is None:
            self._since = now

    def took(self, tokens: int, now: float, more: bool, assumed: float) -> None:
        """Work left the queue, and whether more of it waits."""
        if self._since is not None:
            if self._rate is None:
                self._rate = FadingRate(assumed, self._memory)
            self._rate.add(tokens, max(0.0, now - self._since))
        self._since = now if more else None

    def end(self) -> None:
        """Nothing waits any more, though nothing was served."""
        self._since = None


class PeakRate:
    """The most of something a second that was seen of late."""

    def __init__(self, memory: float) -> None:
        """Args:
        memory: time constant of forgetting, in seconds.
        """
        #: None until a second was seen.
        self.value: float | None = None
        self._memory = memory
        self._amount = 0.0
        self._since: float | None = None

    def add(self, amount: float) -> None:
        """So much more since the last `look`."""
        self._amount += amount

    def look(self, now: float, held_back: bool = False) -> None:
        """What came since a second ago or longer counts now.

        Args:
            now: seconds.
            held_back: there might have been more, so that the most is not forgotten.
        """
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed < 1.0:
            return
        before = self.value or 0.0
        if not held_back:
            before *= exp(-elapsed / self._memory)
        self.value = max(self._amount / elapsed, before)
        self._amount, self._since = 0.0, now
