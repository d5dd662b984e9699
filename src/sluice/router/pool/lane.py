"""The waiting requests of one tier: bands of priority, in each a line for each team."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from sluice.router.pool.queue_request import BANDS, QueueRequest


@dataclass(slots=True)
class Entry:
    """A waiting request, and where it stands."""

    request: QueueRequest
    arrived: float
    order: int
    band: int
    waiting: bool = True

    def __lt__(self, other: Entry) -> bool:
        return self.order < other.order


@dataclass(slots=True)
class _Line:
    """One team's requests in one band, and their work."""

    weight: float
    ticket: int = 0  # of its one valid entry in the band's `by_counter`
    entries: list[Entry] = field(default_factory=list)
    waiting: int = 0
    work: int = 0


@dataclass(slots=True)
class _Band:
    """One priority of one tier."""

    lines: dict[str, _Line] = field(default_factory=dict)
    by_counter: list[tuple[float, int, str]] = field(default_factory=list)
    by_age: list[tuple[float, Entry]] = field(default_factory=list)
    work: int = 0
    weights: float = 0.0


class Lane:
    """The bands of one tier, with its teams' counters."""

    def __init__(self, ageing: float) -> None:
        self.counters: dict[str, float] = {}
        self.bands = tuple(_Band() for _ in BANDS)
        self._ageing = ageing
        self._waiting_of: dict[str, int] = {}
        self._last_left = 0.0
        self._tickets = count(1)

    def __len__(self) -> int:
        return sum(self._waiting_of.values())

    def waiting_of(self, team: str) -> int:
        """How many requests of a team wait."""
        return self._waiting_of.get(team, 0)

    def waits(self, team: str) -> bool:
        """Whether the team has a request here."""
        return team in self._waiting_of

    def lift(self, team: str, credit: float) -> None:
        """Bring a team that returns from idleness up to those that wait, but for the credit."""
        if self._waiting_of.get(team):
            return
        tops = [top for top in map(self._least, self.bands) if top is not None]
        level = min(tops) if tops else self._last_left
        self.counters[team] = max(self.counters.get(team, 0.0), level - credit)

    def pass_by(self, team: str, credit: float) -> None:
        """A team's request comes and leaves at once, while nobody waits. See `lift`."""
        level = max(self.counters.get(team, 0.0), self._last_left - credit)
        self._last_left = self.counters[team] = level

    def push(self, entry: Entry) -> None:
        team = entry.request.team
        self._waiting_of[team] = self._waiting_of.get(team, 0) + 1
        self._join(entry)

    def _join(self, entry: Entry) -> None:
        band, team = self.bands[entry.band], entry.request.team
        line = band.lines.get(team)
        if line is None:
            line = band.lines[team] = _Line(entry.request.weight)
            band.weights += line.weight
            self._enlist(band, line, team)
        heappush(line.entries, entry)
        line.waiting += 1
        line.work += entry.request.work_tokens
        band.work += entry.request.work_tokens
        if entry.band:
            steps = BANDS[entry.request.priority] - entry.band + 1
            heappush(band.by_age, (entry.arrived + steps * self._ageing, entry))

    def remove(self, entry: Entry) -> None:
        """Take a request out, wherever it stands."""
        team = entry.request.team
        entry.waiting = False
        self._leave(entry)
        left = self._waiting_of[team] - 1
        if left:
            self._waiting_of[team] = left
        else:
            del self._waiting_of[team]
            self._last_left = self.counters[team]

    def _leave(self, entry: Entry) -> None:
        band, team = self.bands[entry.band], entry.request.team
        line = band.lines[team]
        line.waiting -= 1
        line.work -= entry.request.work_tokens
        band.work -= entry.request.work_tokens
        if not line.waiting:
            # Its entry in `by_counter` stays until it comes up, and finds no line then.
            del band.lines[team]
            band.weights -= line.weight

    def _enlist(self, band: _Band, line: _Line, team: str) -> None:
        line.ticket = next(self._tickets)
        heappush(band.by_counter, (self.counters[team], line.ticket, team))

    def charge(self, team: str, service: float) -> None:
        """Add to a team's counter; a refund is negative."""
        self.counters[team] += service
        if service < 0:
            # Entries that lag behind are put right as they come up, but one that is ahead
            # would come up too late.
            for band in self.bands:
                line = band.lines.get(team)
                if line is not None:
                    self._enlist(band, line, team)

    def age(self, now: float) -> None:
        """Move up what has waited long enough."""
        for band in reversed(self.bands[1:]):
            while band.by_age and band.by_age[0][0] <= now:
                _, entry = heappop(band.by_age)
                if entry.waiting and self.bands[entry.band] is band:
                    self._leave(entry)
                    entry.band -= 1
                    self._join(entry)

    def first(self) -> Entry | None:
        """Whose turn it is."""
        for band in self.bands:
            if self._least(band) is not None:
                line = band.lines[band.by_counter[0][2]]
                self._clean(line, band)
                return line.entries[0]
        return None

    def first_but(self, over: Callable[[QueueRequest], bool]) -> Entry | None:
        """Whose turn it would be but for the teams that are over their shares; it takes a look at
        all."""
        for band in self.bands:
            for team in sorted(band.lines, key=self.counters.__getitem__):
                line = band.lines[team]
                self._clean(line, band)
                if not over(line.entries[0].request):
                    return line.entries[0]
        return None

    def _clean(self, line: _Line, band: _Band) -> None:
        entries = line.entries
        while not entries[0].waiting or self.bands[entries[0].band] is not band:
            heappop(entries)

    def _least(self, band: _Band) -> float | None:
        """The least counter of those that wait in a band; its team is then at the top."""
        heap = band.by_counter
        while heap:
            counter, ticket, team = heap[0]
            line = band.lines.get(team)
            if line is not None and line.ticket == ticket:
                if counter == self.counters[team]:
                    return counter
                self._enlist(band, line, team)
            heappop(heap)
        return None

    def own(self, team: str) -> int:
        """Work tokens of a team that wait."""
        return sum(band.lines[team].work for band in self.bands if team in band.lines)

    def ahead(self, request: QueueRequest) -> float:
        """Work tokens that will probably be done before a request that joins now."""
        number = BANDS[request.priority]
        above = sum(band.work for band in self.bands[:number])
        band = self.bands[number]
        line = band.lines.get(request.team)
        own = line.work if line else 0
        others = band.weights - (line.weight if line else 0.0)
        shared = (own + request.work_tokens) * others / request.weight
        return above + own + min(band.work - own, shared)
