"""The fastest event loop at hand for the tools of the benchmark."""

import asyncio
import importlib
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` on uvloop where it is installed, else on asyncio's own loop."""
    try:
        # By name: uvloop is in the benchmark's environment, not in every checkout's.
        factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
