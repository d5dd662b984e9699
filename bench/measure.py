"""The rounds of a benchmark run, and their raw figures."""

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from bench import answers, wrk
from bench.errors import BenchError
from bench.hold import Held
from bench.machine import OTHER_CORE, busy_share, pinned
from bench.subject import Lane, Notes, Subject, UsageCheck

_WARM_UP_SECONDS = 1
_IDLE_SECONDS = 1.0
_LOOK_AROUND_SECONDS = 1.0
#: Longer than it takes to open the streams, so that all are open at once.
_HELD_EVENTS = 15
_HELD_LIMIT_SECONDS = 240
_MEMORY_INTERVAL_SECONDS = 0.5
#: Of one lane before the next has its turn, where lanes are compared with each other: the machine's
#: mood changes within seconds, and many short turns tell more than a few long ones.
_PAIRED_SECONDS = 1
#: Of a turn, before its rate is measured: after the pause connections are made anew, and whoever
#: was hot has to become it again, which is nothing that a steady load would feel.
_LEAD_IN_SECONDS = 0.3


@dataclass(frozen=True)
class Kind:
    """One of the loads that every lane gets."""

    name: str
    connections: int
    streamed: bool

    def question(self, model: str) -> answers.Question:
        """What to ask under this load."""
        return answers.ask_streamed(model) if self.streamed else answers.ask(model)


WARM_UP = Kind("warm-up", 8, streamed=False)
LATENCY = Kind("latency", 1, streamed=False)
REQUESTS = Kind("requests", 64, streamed=False)
STREAMS = Kind("streams", 32, streamed=True)
#: In this order.
KINDS = (WARM_UP, LATENCY, REQUESTS, STREAMS)


@dataclass(frozen=True)
class LoadRun:
    """One load on one lane in one round."""

    round: int
    label: str
    kind: str
    load: wrk.Load
    usage: UsageCheck | None
    error: str | None
    #: Number of the turn within a round, where lanes took turns.
    turn: int = 1


@dataclass(frozen=True)
class HeldRun:
    """The held streams of one lane, and the gateway's memory before and at most meanwhile."""

    label: str
    held: Held
    bytes_before: int | None
    bytes_held: int | None
    usage: UsageCheck | None
    error: str | None

    @property
    def kilobytes_a_stream(self) -> float | None:
        """What a stream costs in resident memory."""
        if self.bytes_before is None or self.bytes_held is None or not self.held.held_at_once:
            return None
        return (self.bytes_held - self.bytes_before) / self.held.held_at_once / 1024


@dataclass
class Results:
    """All raw figures of a run."""

    loads: list[LoadRun] = field(default_factory=list)
    held: list[HeldRun] = field(default_factory=list)
    idle_bytes: dict[str, list[int]] = field(default_factory=dict)
    notes: dict[str, Notes] = field(default_factory=dict)
    #: How busy the machine was with other things before each turn, 0 to 1.
    busy_before: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Straight(Subject):
    """No gateway: the mock itself, the ceiling of every row."""

    name = "mock"

    def notes(self) -> Notes:
        """See `Subject.notes`."""
        return Notes("-")

    def start(self, upstream: str) -> list[Lane]:
        """See `Subject.start`."""
        return [Lane("straight at the mock", wrk.Endpoint(upstream, "mock"))]

    def stop(self) -> None:
        """See `Subject.stop`."""


class Run:
    """Measures subjects in turn: A B C, A B C, so that a noisy minute hits them all."""

    def __init__(self, subjects: list[Subject], upstream: str, tool_python: str) -> None:
        self._subjects = subjects
        self._upstream = upstream
        self._python = tool_python
        self.results = Results()

    def loads(self, rounds: int, seconds: int) -> None:
        """All loads on all subjects."""
        for number in range(1, rounds + 1):
            for subject in self._subjects:
                say(f"round {number} of {rounds}: {subject.name}")
                measure = self._paired_loads if subject.paired else self._all_loads
                self._turn(subject, partial(measure, subject, number, seconds))

    def hold(self, streams: int) -> None:
        """The held streams, on each subject that can."""
        for subject in self._subjects:
            # A fresh process for each lane: what a first lane left would flatter a second.
            for index in range(subject.lanes if subject.holds else 0):
                say(f"{streams} held streams: {subject.name}, lane {index + 1}")
                self._turn(subject, partial(self._hold, subject, streams, index))

    def close(self) -> None:
        """Stop what subjects kept running."""
        for subject in self._subjects:
            subject.close()

    def _turn(self, subject: Subject, measure: Callable[[list[Lane]], None]) -> None:
        """Start, measure, stop. A failure ends this subject's turn, not the run."""
        self.results.busy_before.append(round(busy_share(_LOOK_AROUND_SECONDS), 3))
        try:
            lanes = subject.start(self._upstream)
            time.sleep(_IDLE_SECONDS)
            for lane in lanes:
                self._note(subject, lane)
            measure(lanes)
        except (BenchError, OSError, subprocess.TimeoutExpired) as error:
            self._fail(f"{subject.name}: {error}")
        finally:
            subject.stop()

    def _note(self, subject: Subject, lane: Lane) -> None:
        idle = subject.resident_bytes()
        if idle is not None:
            self.results.idle_bytes.setdefault(lane.label, []).append(idle)
        if lane.label not in self.results.notes:
            self.results.notes[lane.label] = subject.notes()

    def _fail(self, message: str) -> None:
        say(f"FAILED: {message}")
        self.results.failures.append(message)

    def _all_loads(self, subject: Subject, number: int, seconds: int, lanes: list[Lane]) -> None:
        for lane in lanes:
            for kind in KINDS:
                duration = _WARM_UP_SECONDS if kind is WARM_UP else seconds
                self._load(subject, lane, kind, number, duration)

    def _paired_loads(self, subject: Subject, number: int, seconds: int, lanes: list[Lane]) -> None:
        """Each load on all lanes in short turns, another of them first each time.

        A turn begins with a lead-in of the same load, which is not measured. There are so many
        turns that what is measured is as long as the load was to be. Usage records are compared
        after the last of a load's turns: to wait for them after each would take longer than the
        turns.
        """
        for kind in KINDS:
            once = kind in {WARM_UP, LATENCY}
            lead_in = 0.0 if once else _LEAD_IN_SECONDS
            turns = 1 if once else math.ceil(seconds / (_PAIRED_SECONDS - lead_in))
            runs = []
            for turn in range(turns):
                first = turn % len(lanes)
                for lane in lanes[first:] + lanes[:first]:
                    question = kind.question(lane.endpoint.model)
                    load = wrk.run(
                        lane.endpoint, question, kind.connections, _PAIRED_SECONDS, lead_in
                    )
                    error = load.error()
                    runs.append(LoadRun(number, lane.label, kind.name, load, None, error, turn + 1))
            finished = sum(run.load.requests for run in runs)
            usage = subject.check_usage(finished, sum(run.load.connections for run in runs))
            runs[-1] = replace(runs[-1], usage=usage)
            for run in runs:
                if run.error is not None:
                    self._fail(f"{run.label}, {kind.name}: {run.error}")
            if (wrong := _usage_error(usage)) is not None:
                self._fail(f"{subject.name}, {kind.name}: {wrong}")
                runs = [replace(run, error=run.error or wrong) for run in runs]
            self.results.loads.extend(runs)

    def _load(self, subject: Subject, lane: Lane, kind: Kind, number: int, seconds: int) -> None:
        question = kind.question(lane.endpoint.model)
        load = wrk.run(lane.endpoint, question, kind.connections, seconds)
        usage = subject.check_usage(load.requests, load.connections)
        error = load.error() or _usage_error(usage)
        if error is not None:
            self._fail(f"{lane.label}, {kind.name}: {error}")
        self.results.loads.append(LoadRun(number, lane.label, kind.name, load, usage, error))

    def _hold(self, subject: Subject, streams: int, index: int, lanes: list[Lane]) -> None:
        lane = lanes[index]
        before = subject.resident_bytes()
        with most_memory(subject) as most:
            held = self._held_streams(lane, streams)
        usage = subject.check_usage(held.complete, 0)
        error = _held_error(held) or _usage_error(usage)
        if error is not None:
            self._fail(f"{lane.label}, held streams: {error}")
        self.results.held.append(HeldRun(lane.label, held, before, most(), usage, error))

    def _held_streams(self, lane: Lane, streams: int) -> Held:
        command = [self._python, "-m", "bench.hold", "--url", lane.endpoint.url]
        command += ["--model", lane.endpoint.model, "--streams", str(streams)]
        command += ["--events", str(_HELD_EVENTS)]
        if lane.endpoint.key is not None:
            command += ["--key", lane.endpoint.key]
        done = subprocess.run(
            pinned(command, OTHER_CORE),
            check=False,
            capture_output=True,
            text=True,
            timeout=_HELD_LIMIT_SECONDS,
        )
        if done.returncode != 0:
            raise BenchError(f"the hold client failed:\n{done.stderr}")
        return Held(**json.loads(done.stdout))


@contextmanager
def most_memory(subject: Subject) -> Iterator[Callable[[], int | None]]:
    """Look at a subject's resident memory time and again; the result tells the most seen."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_MEMORY_INTERVAL_SECONDS):
            size = subject.resident_bytes()
            if size is not None:
                seen.append(size)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: max(seen, default=None)
    finally:
        ended.set()
        thread.join()


def say(message: str) -> None:
    """Progress, beside whatever is on standard output."""
    print(message, file=sys.stderr, flush=True)


def _usage_error(usage: UsageCheck | None) -> str | None:
    if usage is None or usage.exact:
        return None
    return f"usage records don't agree with what finished: {usage}"


def _held_error(held: Held) -> str | None:
    return None if held.complete == held.streams else f"not every stream was whole: {held}"
