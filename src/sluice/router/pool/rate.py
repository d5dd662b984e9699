"""A rate that fades: tokens over the seconds they took, both forgotten in the same measure."""

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
