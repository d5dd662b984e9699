"""Completion windows: how long a batch may take, as callers say it (`24h`, `90m`, `1800s`)."""

from __future__ import annotations

import re
from datetime import timedelta

SHORTEST = timedelta(minutes=1)
LONGEST = timedelta(hours=24)

_WINDOW = re.compile(r"([0-9]{1,6})([smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}


def read_window(text: str) -> timedelta | None:
    """A window of one minute to 24 hours; None: it is none."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        return None
    window = timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    return window if SHORTEST <= window <= LONGEST else None


def window_text(window: timedelta) -> str:
    """A window in the largest unit that it is whole in."""
    seconds = int(window.total_seconds())
    for unit in "hm":
        if seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"
