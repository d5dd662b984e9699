"""Which deployments rest: a breaker for their faults, a cooldown for the waits they ask for.

One `Breakers` serves a gateway process. A call asks for a `Permit`, and tells it what came of the
call; whoever holds one must settle it on every way out, `abandoned` being the harmless word.

The states, the moves between them and their listeners are pybreaker's, through its public methods.
Its call wrapper is left aside, since it holds a lock for as long as a call lasts and counts
consecutive failures only. So is its timer, which reads the wall clock. When to open is decided
here, from the share of failures in a rolling window; when to try again, on the monotonic clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pybreaker

State = Literal["closed", "open", "half_open"]

_STATES: dict[str, State] = {
    pybreaker.STATE_CLOSED: "closed",
    pybreaker.STATE_OPEN: "open",
    pybreaker.STATE_HALF_OPEN: "half_open",
}

#: A window is counted in so many parts, and is exact to one of them.
_PARTS = 30

#: What callers are told to wait while a probe is out: nobody knows when it comes back.
_PROBE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When deployments rest.

    Attributes:
        window: seconds over which calls are counted.
        min_calls: with fewer calls in the window nothing opens.
        failure_ratio: the share of failed calls, above 0 and up to 1, that opens.
        open_seconds: rest before the first probe.
        probes: calls let through at a time while half open.
        successes: probes that must succeed to close.
        max_cooldown: cap in seconds on a wait that an upstream asks for.
    """

    window: float = 30.0
    min_calls: int = 10
    failure_ratio: float = 0.5
    open_seconds: float = 15.0
    probes: int = 1
    successes: int = 1
    max_cooldown: float = 300.0


@dataclass(frozen=True, slots=True)
class Rest:
    """Something takes no calls for now.

    Attributes:
        seconds: until it may take one again.
        limited: it rests because of a limit, and not because of its faults.
    """

    seconds: float
    limited: bool


class BreakerObserver(Protocol):
    """Is told when deployments come to rest, and when they come back."""

    def breaker_changed(self, name: str, old: State, new: State) -> None:
        """A breaker moved."""
        ...

    def cooldown_set(self, name: str, seconds: float, limited: bool) -> None:
        """A deployment asked to be left alone, for longer than was known."""
        ...


class Breakers:
    """The breakers and cooldowns of all deployments, by name."""

    def __init__(
        self,
        config: BreakerConfig | None = None,
        observer: BreakerObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        config: when they rest.
        observer: for logs and metrics.
        clock: seconds that never go back.
        """
        self._config = config or BreakerConfig()
        self._observer = observer
        self._clock = clock
        self._cells: dict[str, _Cell] = {}

    def resting(self, name: str) -> Rest | None:
        """How long a deployment rests; None where it takes a call now."""
        cell = self._cells.get(name)
        return None if cell is None else cell.resting()

    def begin(self, name: str) -> Permit | None:
        """Leave to make one call, to be settled; None where the deployment rests."""
        return self._cell(name).begin()

    def cool(self, name: str, seconds: float, limited: bool = True) -> None:
        """Rest for as long as the upstream asked, up to the cap; never less than it asked before.

        Args:
            name: the deployment.
            seconds: from now.
            limited: because of a limit (429), and not for an overload or a fault.
        """
        self._cell(name).cool(seconds, limited)

    def state(self, name: str) -> State:
        """Where a deployment's breaker stands; an open one half-opens with the next call."""
        cell = self._cells.get(name)
        return "closed" if cell is None else cell.state

    def retain(self, names: Collection[str]) -> None:
        """Forget every deployment but these: the catalogue has changed."""
        self._cells = {name: cell for name, cell in self._cells.items() if name in names}

    def _cell(self, name: str) -> _Cell:
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = _Cell(name, self._config, self._observer, self._clock)
        return cell


class Permit:
    """Leave to make one call. The first word about the call counts, with one exception: an answer
    that began well may still break off.

    Words about calls that began before the breaker last moved say nothing about the present, and
    are ignored.
    """

    __slots__ = ("_cell", "_generation", "_part", "_probe", "_settled")

    def __init__(self, cell: _Cell, generation: int, probe: bool) -> None:
        self._cell = cell
        self._generation = generation
        self._probe = probe
        self._part: _Part | None = None
        self._settled = False

    @property
    def probe(self) -> bool:
        """Whether the call tries out a half-open breaker."""
        return self._probe

    def succeeded(self) -> None:
        """The upstream answers: the whole body is here, or a stream's first token.

        Said at once, and not at a stream's end, so that a probe is no longer than it must be.
        """
        if self._settled or self._part is not None:
            return
        self._free()
        if self._current():
            self._part = self._cell.succeeded()
            self._generation = self._cell.generation  # a probe closes the breaker, and stays

    def failed(self) -> None:
        """The upstream failed, by a fault of its own; an answer that had begun is taken back.

        A wait that it asked for is `Breakers.cool`'s.
        """
        if self._settled:
            return
        self._settled = True
        self._free()
        if self._current():
            if self._part is not None:
                self._part.calls -= 1
            self._cell.failed()

    def abandoned(self) -> None:
        """Nothing is known of the upstream's health: the caller left or was at fault, its deadline
        passed, or a limit was met. Counts neither way, and frees a probe's place."""
        self._settled = True
        self._free()

    def _current(self) -> bool:
        return self._generation == self._cell.generation

    def _free(self) -> None:
        if self._probe and self._current():
            self._cell.probes -= 1
        self._probe = False


class _Part:
    """Calls in one part of a window."""

    __slots__ = ("calls", "failures", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.calls = 0
        self.failures = 0


class _Window:
    """Calls and failures of the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._width = seconds / _PARTS
        self._parts: deque[_Part] = deque()

    def note(self, now: float, failures: int) -> _Part:
        """Count one call."""
        if not self._parts or now - self._parts[-1].since >= self._width:
            self._parts.append(_Part(now))
            self._drop(now)
        part = self._parts[-1]
        part.calls += 1
        part.failures += failures
        return part

    def totals(self, now: float) -> tuple[int, int]:
        """Calls and failures."""
        self._drop(now)
        return sum(p.calls for p in self._parts), sum(p.failures for p in self._parts)

    def clear(self) -> None:
        self._parts.clear()

    def _drop(self, now: float) -> None:
        while self._parts and now - self._parts[0].since >= self._seconds:
            self._parts.popleft()


class _Cell(pybreaker.CircuitBreakerListener):
    """One deployment.

    Attributes:
        state: the breaker's, as pybreaker told it last.
        generation: how often the breaker has moved.
        probes: calls out while half open.
    """

    def __init__(
        self,
        name: str,
        config: BreakerConfig,
        observer: BreakerObserver | None,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._config = config
        self._observer = observer
        self._clock = clock
        self._window = _Window(config.window)
        self._breaker = pybreaker.CircuitBreaker(
            success_threshold=config.successes, name=name, listeners=[self]
        )
        self._open_until = 0.0
        self._cooled_until = 0.0
        self._cooled_by_limit = False
        self.state: State = "closed"
        self.generation = 0
        self.probes = 0

    def resting(self) -> Rest | None:
        now = self._clock()
        until, limited = self._cooled_until, self._cooled_by_limit
        if self.state == "open" and self._open_until > until:
            until, limited = self._open_until, False
        if self.state == "half_open" and self.probes >= self._config.probes:
            until, limited = max(until, now + _PROBE_SECONDS), False
        return Rest(until - now, limited) if until > now else None

    def begin(self) -> Permit | None:
        if self.resting() is not None:
            return None
        if self.state == "open":
            self._breaker.half_open()
        probe = self.state == "half_open"
        self.probes += probe
        return Permit(self, self.generation, probe)

    def succeeded(self) -> _Part:
        if self.state == "half_open":
            self._breaker.call(_nothing)  # pybreaker counts it, and closes after enough of them
        return self._window.note(self._clock(), 0)

    def failed(self) -> None:
        now = self._clock()
        self._window.note(now, 1)
        if self.state == "half_open" or self._too_many(*self._window.totals(now)):
            self._open_until = now + self._config.open_seconds
            self._breaker.open()

    def _too_many(self, calls: int, failures: int) -> bool:
        config = self._config
        return calls >= config.min_calls and failures >= config.failure_ratio * calls

    def cool(self, seconds: float, limited: bool) -> None:
        seconds = min(seconds, self._config.max_cooldown)
        until = self._clock() + seconds
        if seconds <= 0 or until <= self._cooled_until:
            return
        self._cooled_until, self._cooled_by_limit = until, limited
        if self._observer is not None:
            self._observer.cooldown_set(self._name, seconds, limited)

    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        """What was counted belongs to the state that is left."""
        old, self.state = self.state, _STATES[new_state.name]
        self.generation += 1
        self.probes = 0
        self._window.clear()
        if self._observer is not None:
            self._observer.breaker_changed(self._name, old, self.state)


def _nothing(*_: Any) -> None:
    """A call that succeeds."""
