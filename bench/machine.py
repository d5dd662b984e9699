"""The machine under the benchmark: cores, processes, memory, limits, versions."""

import os
import platform
import resource
import shutil
import socket
import time
from pathlib import Path

from bench.errors import BenchError

#: The gateway has this core to itself.
GATEWAY_CORE = 0
#: The mock upstream, the load, and whatever a gateway keeps its state in.
OTHER_CORE = 1

_KIBIBYTE = 1024


def check() -> None:
    """Fail early, with what to do, on a machine that can't run the benchmark."""
    cores = os.sched_getaffinity(0)
    if not {GATEWAY_CORE, OTHER_CORE} <= cores:
        raise BenchError(f"needs cores {GATEWAY_CORE} and {OTHER_CORE}, may use {sorted(cores)}")
    if shutil.which("taskset") is None:
        raise BenchError("taskset is missing: install Debian's util-linux")


def raise_open_files() -> int:
    """Allow this process and its children as many open files as the system lets them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def pinned(command: list[str], core: int) -> list[str]:
    """The command, kept on one core with all its children."""
    return ["taskset", "-c", str(core), *command]


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def process_tree(pid: int) -> set[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        found.add(current)
        waiting.extend(children.get(current, []))
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    return sum(map(_resident, process_tree(pid)))


def busy_share(seconds: float) -> float:
    """How busy the benchmark's cores are, from 0 to 1, over the next `seconds`."""
    before = _idle_and_total()
    time.sleep(seconds)
    after = _idle_and_total()
    total = after[1] - before[1]
    return 1 - (after[0] - before[0]) / total if total else 0.0


def description() -> dict[str, str]:
    """What a reader must know about this machine to compare figures."""
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _idle_and_total() -> tuple[int, int]:
    """Ticks since boot of both cores."""
    idle = total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in (f"cpu{GATEWAY_CORE}", f"cpu{OTHER_CORE}"):
            # user, nice, system, idle, waiting for disks, and more
            idle += int(ticks[3]) + int(ticks[4])
            total += sum(map(int, ticks[:8]))
    return idle, total


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text()
    except OSError:  # it ended while we were looking
        return None
    # The command in the second field may hold spaces and brackets.
    return int(stat.rpartition(")")[2].split()[1])


def _resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIBIBYTE
    return 0
