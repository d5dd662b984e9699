"""Runs the processes of one machine as child processes: start, watch, restart, stop in order.

The supervisor owns nothing but processes. What a part is (a database, the gateway) and how one
knows that it answers comes in with its `Part`. Parts are started one after the other and stopped
in reverse order, so that whatever needs a database goes before the database does:

    async with Supervisor() as supervisor:
        await supervisor.start(postgres)
        await supervisor.run_once(migrate)
        await supervisor.start(gateway)
        await supervisor.wait()

A SIGINT or SIGTERM ends the block, wherever it is; a second one kills what is left.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

__all__ = ["Backoff", "Part", "PartFailedError", "Supervisor", "child_setup"]

_PR_SET_PDEATHSIG = 1
_POLL_INTERVAL = 0.05
#: A part without a readiness check counts as started once it has stayed up this long, in seconds.
_SETTLE_TIME = 0.5
_LOG_LIMIT = 10 * 1024 * 1024
_LOG_CHECK_INTERVAL = 60.0
_TAIL_LINES = 12
_TAIL_BYTES = 4096
_LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One process to run, and how to tell that it answers and how to ask it to stop."""

    name: str
    #: Program (absolute path) and arguments.
    command: Sequence[str]
    #: The whole environment of the process; nothing is inherited.
    env: Mapping[str, str]
    #: One quick readiness check; None if staying up is all there is to ask.
    answers: Callable[[], Awaitable[bool]] | None = None
    #: Seconds until the check has to succeed at the first start.
    start_deadline: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    #: Seconds between `stop_signal` and SIGKILL.
    stop_deadline: float = 10.0
    #: File that gets the output; None passes it through to the supervisor's stderr.
    log: Path | None = None
    #: User and group id to run as, if not the supervisor's own.
    user: int | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between restarts, in seconds: doubling from `first` to `longest`."""

    first: float = 0.1
    longest: float = 5.0
    #: Having stayed up this long, a part starts again from `first`.
    forgive_after: float = 10.0

    def delay(self, failures: int) -> float:
        """The seconds to wait after `failures` (1 or more) exits in a row."""
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)


class PartFailedError(RuntimeError):
    """A part could not be started, or a one-shot part failed; the message says which and why."""

    def __init__(self, part: str, reason: str, last_lines: str) -> None:
        said = f"; its last output:\n{last_lines}" if last_lines else ""
        super().__init__(f"{part} {reason}{said}")
        self.part = part


class _StopRequested(Exception):
    """A signal arrived while the block was still starting parts."""


def child_setup(death_signal: signal.Signals, user: int | None = None) -> Callable[[], None]:
    """A `preexec_fn` that ties a child to this process, even if this process is killed.

    Takes the signal the kernel is to send to the child when its parent is gone (Linux only;
    elsewhere a killed supervisor leaves its children behind), and the user and group id to change
    to. The order matters: the kernel forgets the death signal when the user changes. To the kernel
    the parent is the thread that forks, so start children from one that lives as long as they do.
    """
    parent = os.getpid()
    # Looked up here, not after the fork, where loading a library could deadlock.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def setup() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:  # it died before the request above
                os._exit(1)

    return setup


class Supervisor:
    """Runs parts as child processes for the time of an `async with` block.

    Takes where passed-through output goes, the delays between restarts, and how many exits in a
    row at the first start mean that a part cannot run.
    """

    def __init__(
        self,
        *,
        output: BinaryIO | None = None,
        backoff: Backoff | None = None,
        start_attempts: int = 5,
        logger: logging.Logger | None = None,
    ) -> None:
        self._output = output or sys.stderr.buffer
        self._backoff = backoff or Backoff()
        self._start_attempts = start_attempts
        self._logger = logger or logging.getLogger(__name__)
        self._kept: list[_Kept] = []
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._stopping.set()
        try:
            for kept in reversed(self._kept):
                await self._stop(kept)
        finally:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return isinstance(error, _StopRequested)

    def request_stop(self) -> None:
        """What a signal does: the first call stops in order, the second kills what is left."""
        if self._stopping.is_set():
            self._killing.set()
        self._stopping.set()

    async def start(self, part: Part) -> None:
        """Starts `part`, returns when it answers, and keeps it running from then on.

        Raises PartFailedError if it exits again and again, or doesn't answer in time.
        """
        kept = _Kept(part)
        self._kept.append(kept)
        failures = 0
        while True:
            child = await self._spawn(kept)
            if await self._until_ready(child):
                kept.keeper = asyncio.create_task(self._keep(kept), name=f"keep {part.name}")
                return
            failures += 1
            if failures == self._start_attempts:
                reason = f"could not be started: {failures} times in a row it {child.ending()}"
                raise PartFailedError(part.name, reason, child.last_lines())
            await self._pause(kept, failures)

    async def run_once(self, part: Part) -> None:
        """Runs `part` to its end. Raises PartFailedError if its exit status isn't 0."""
        kept = _Kept(part)
        self._kept.append(kept)  # so that it is stopped like any other while it runs
        child = await self._spawn(kept)
        await self._first(child.exit)
        if self._stopping.is_set():
            raise _StopRequested
        self._kept.remove(kept)
        if child.exit.result() != 0:
            raise PartFailedError(part.name, child.ending(), child.last_lines())

    async def wait(self) -> None:
        """Returns when a stop has been requested; parts that die meanwhile are restarted."""
        await self._stopping.wait()

    def pid(self, name: str) -> int | None:
        """The process id of the part called `name`; None if there is none or it isn't running."""
        for kept in self._kept:
            if kept.part.name == name and kept.child is not None and not kept.child.exit.done():
                return kept.child.process.pid
        return None

    async def _spawn(self, kept: "_Kept") -> "_Child":
        # Under the lock, so that a stop sees either no child or the whole one.
        async with kept.lock:
            if self._stopping.is_set():
                raise _StopRequested
            try:
                kept.child = await _Child.spawn(kept.part, self._output)
            except OSError as error:
                raise PartFailedError(kept.part.name, f"cannot be run: {error}", "") from error
            return kept.child

    async def _until_ready(self, child: "_Child") -> bool:
        """Whether the part answers; False if it exited first."""
        part = child.part
        loop = asyncio.get_running_loop()
        deadline = loop.time() + part.start_deadline
        interval = _SETTLE_TIME if part.answers is None else _POLL_INTERVAL
        while loop.time() < deadline:
            if part.answers is not None and await part.answers():
                # Somebody else may have answered: a part that has exited was not it.
                return not child.exit.done()
            await self._first(child.exit, timeout=interval)
            interval = min(interval * 1.5, _SETTLE_TIME)
            if self._stopping.is_set():
                raise _StopRequested
            if child.exit.done():
                return False
            if part.answers is None:
                return True
        reason = f"could not be started: no answer within {part.start_deadline:g} s"
        raise PartFailedError(part.name, reason, child.last_lines())

    async def _keep(self, kept: "_Kept") -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while kept.child is not None:
            started = loop.time()
            while not kept.child.exit.done():
                await asyncio.wait({kept.child.exit}, timeout=_LOG_CHECK_INTERVAL)
                kept.child.trim_log()
            if self._stopping.is_set():
                return
            failures = 1 if loop.time() - started >= self._backoff.forgive_after else failures + 1
            try:
                await self._pause(kept, failures)
                await self._spawn(kept)
            except _StopRequested:
                return
            except PartFailedError as error:  # its program is gone, which an upgrade may repair
                self._logger.error("%s", error)

    async def _pause(self, kept: "_Kept", failures: int) -> None:
        delay = self._backoff.delay(failures)
        ending = kept.child.ending() if kept.child is not None else "is not running"
        self._logger.warning("%s %s; restarting in %.1f s", kept.part.name, ending, delay)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)
            raise _StopRequested

    async def _stop(self, kept: "_Kept") -> None:
        async with kept.lock:
            child = kept.child
        if child is not None and not child.exit.done():
            self._logger.info("stopping %s", kept.part.name)
            child.send(kept.part.stop_signal)
            killing = asyncio.create_task(self._killing.wait())
            await asyncio.wait(
                {child.exit, killing},
                timeout=kept.part.stop_deadline,
                return_when=asyncio.FIRST_COMPLETED,
            )
            killing.cancel()
            if not child.exit.done():
                self._logger.warning("%s did not stop in time; killing it", kept.part.name)
                child.kill()
            await child.exit
        if kept.keeper is not None:
            await kept.keeper

    async def _first(self, exit_: asyncio.Task[int], timeout: float | None = None) -> None:
        """Returns on the exit, a stop request, or after `timeout` seconds, whatever is first."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait(
                {exit_, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()


class _Kept:
    """A part and its current process."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.lock = asyncio.Lock()
        self.child: _Child | None = None
        self.keeper: asyncio.Task[None] | None = None


class _Child:
    """One run of a part."""

    def __init__(self, part: Part, process: asyncio.subprocess.Process, output: BinaryIO) -> None:
        self.part = part
        self.process = process
        self._output = output
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        #: Done, with the exit status, when the process and everything it left behind are gone.
        self.exit = asyncio.create_task(self._wait(), name=f"wait for {part.name}")

    @classmethod
    async def spawn(cls, part: Part, output: BinaryIO) -> Self:
        """Starts the process. Raises OSError if its program or its log file can't be opened."""
        with contextlib.ExitStack() as stack:
            target: int | BinaryIO = asyncio.subprocess.PIPE
            if part.log is not None:
                part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _trim(part.log)
                target = stack.enter_context(part.log.open("ab"))
            process = await asyncio.create_subprocess_exec(
                *part.command,
                env=dict(part.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=target,
                stderr=asyncio.subprocess.STDOUT,
                # Of its own, so that a ctrl-C in the terminal reaches the supervisor alone.
                start_new_session=True,
                preexec_fn=child_setup(part.stop_signal, part.user),
            )
        return cls(part, process, output)

    def send(self, number: signal.Signals) -> None:
        """Signals the process, not its children: they are its own to stop."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ending(self) -> str:
        """How the process ended, for a log line."""
        if not self.exit.done():
            return "is running"
        status = self.exit.result()
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def last_lines(self) -> str:
        """The end of what the process wrote, a few lines."""
        lines = list(self._tail)
        if self.part.log is not None:
            with contextlib.suppress(OSError), self.part.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines()[-_TAIL_LINES:]
        return b"\n".join(lines).decode(errors="replace")

    def trim_log(self) -> None:
        """Starts a new log file if the present one has become too large."""
        if self.part.log is not None:
            _trim(self.part.log)

    async def _wait(self) -> int:
        pump = asyncio.create_task(self._pass_through(self.process.stdout))
        status = await self.process.wait()
        # What it forked may hold ports and files that the next run needs.
        self.kill()
        await asyncio.wait({pump}, timeout=1.0)
        pump.cancel()
        return status

    async def _pass_through(self, stream: asyncio.StreamReader | None) -> None:
        rest = b""
        while stream is not None and (chunk := await stream.read(65536)):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, newline, rest = lines + newline + rest, b"\n", b""
            self._pass(lines + newline)
        self._pass(rest + b"\n" if rest else b"")

    def _pass(self, lines: bytes) -> None:
        """Whole lines only: several parts share the output."""
        self._tail.extend(lines.splitlines()[-_TAIL_LINES:])
        with contextlib.suppress(OSError):  # nobody is listening; the part must not stall for it
            self._output.write(lines)
            self._output.flush()


def _trim(log: Path) -> None:
    """Moves a log that has grown too large aside, under the same name with `.1` added.

    The server keeps writing to the same file, so it is copied and emptied rather than renamed;
    that works because it was opened for appending.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
