"""Stands between the worker and the engine: however the worker ends, the engine ends with it.

Run as a script, `python guard.py COMMAND…`, with nothing but the standard library. The worker holds
the other end of the standard input. A line on it is a request: `term` asks the engine to end,
`kill` ends all its processes at once. Its end means that the worker is gone, by `kill -9` perhaps,
and is taken as `kill`. On the standard output goes the engine's process id at the start, and its
exit status, in the manner of `Popen.returncode`, at the end.

Only the guard, the engine's parent, sends it signals, so that none reaches a stranger that was
given the same process id. A guard that is killed takes the engine along where the system knows how
to (Linux); the worker ends what is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """What a child does before it becomes the engine."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def setup() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return setup


def guard(command: Sequence[str]) -> None:
    """Run `command` to its end, and leave nothing of it."""
    try:
        engine = subprocess.Popen(  # noqa: S603 - the operator's own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - there are no threads
        )
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    try:
        _tell(str(engine.pid))
        while engine.poll() is None:
            readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
            if not readable:
                continue
            asked = os.read(0, 64)
            if not asked or b"kill" in asked:
                break
            engine.terminate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
    _tell(str(engine.wait()))


def _tell(line: str) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Signals are the worker's to hear. Heard in vain, not ignored: the engine would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    guard(sys.argv[1:])
