"""Waiting for things with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

T = TypeVar("T")


def eventually(
    probe: Callable[[], T | Literal[False] | None], seconds: float = 10.0, interval: float = 0.02
) -> T:
    """The first truthy value of `probe`; fails if there is none within the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: last saw {value!r}"
        time.sleep(interval)


async def eventually_async(
    probe: Callable[[], Awaitable[T]], seconds: float = 10.0, interval: float = 0.02
) -> T:
    """The same for a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        value = await probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: last saw {value!r}"
        await asyncio.sleep(interval)
