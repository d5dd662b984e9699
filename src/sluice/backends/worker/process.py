"""An engine's processes: one, with all that it starts, under a guard."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from sluice.backends.worker import guard


class EngineNotStarted(Exception):
    """The engine's program can't be run."""


class EngineProcess:
    """One run of an engine.

    Attributes:
        pid: of its first process, and of the group of all of them.
        ended: done when all of them are gone; says how the first one ended.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, pid: int
    ) -> None:
        self._guard = process
        self._output = output
        self.pid = pid
        self.ended = asyncio.create_task(self._wait(), name=f"engine {pid}")

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start an engine; what it writes goes to our standard error.

        Raises:
            EngineNotStarted: there is no such program.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(guard.__file__)),
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        output = process.stdout
        line = b"" if output is None else await output.readline()
        if output is None or not line:
            await process.wait()
            raise EngineNotStarted(f"`{command[0]}` can't be run; see its output above")
        return cls(process, output, int(line))

    async def stop(self, grace_seconds: float) -> None:
        """Ask the engine to end, and end what is left of it after the grace."""
        if grace_seconds > 0:
            self._ask(b"term\n")
            await asyncio.wait({self.ended}, timeout=grace_seconds)
        self.kill()
        await asyncio.shield(self.ended)

    def kill(self) -> None:
        """End all its processes, now."""
        self._ask(b"kill\n")

    def _ask(self, line: bytes) -> None:
        stdin = self._guard.stdin
        if stdin is not None and not self.ended.done():
            with suppress(OSError, RuntimeError):  # the guard is gone, and so is the engine
                stdin.write(line)

    async def _wait(self) -> str:
        line = await self._output.read()
        await self._guard.wait()
        if not line:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            return "lost its guard"
        return _ending(int(line))


def _ending(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
