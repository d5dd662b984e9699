"""The clock of the pools: never goes back, and is the same at all gateways as far as their
machines' clocks agree when they start."""

from __future__ import annotations

import time
from collections.abc import Callable


def shared_clock() -> Callable[[], float]:
    """A clock that gives seconds since the epoch as they were at the start, and moves steadily."""
    offset = time.time() - time.monotonic()

    def now() -> float:
        return time.monotonic() + offset

    return now
