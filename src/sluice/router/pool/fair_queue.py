"""The pool's queue: who is next when every replica is at its bound, and who had better not wait.

Order, from the outside in:

1. Interactive before batch. Batch requests come out only while no interactive one waits.
2. Priority bands, high, normal, low. A request that has waited `ageing` seconds moves up one, so
   that nothing starves.
3. Teams, by virtual token counters (VTC, OSDI'24): the team that has had the least service for
   its weight is next. Service is input tokens, charged as a request leaves the queue, and twice
   the output tokens, charged as they are known. A team that returns from idleness starts at the
   least counter of those that wait, less a small credit: its bursts pass before a team that
   always waits, as long as it stays below its share, but it cannot save up for long.
4. Within a team, by arrival.

A request is refused at the door when its first token would come too late, and told when it would
not. The wait is the work ahead of it over the rate at which the queue is seen to drain; of the
other teams' work only that counts which fair sharing will let pass first, so that a team with a
long queue waits for itself. Nor is it less than its own team's work over the rate at which that
team is seen to be served, which knows of the others that are still to come.

Every operation takes O(log n) of the requests waiting, amortised: counters only rise, and a heap
entry that lags behind is put back when it comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Literal

from sluice.router.pool.rate import FadingRate

Priority = Literal["high", "normal", "low"]
Tier = Literal["interactive", "batch"]

_BANDS: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}

#: Time constant in seconds with which the rate of draining is forgotten.
_MEMORY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A request as the queue sees it.

    Attributes:
        id: unique among those that wait.
        team: whose counter it is charged to.
        input_tokens: of its prompt.
        work_tokens: of those that a replica will probably have to compute.
        priority: its band.
        tier: batch requests fill what interactive ones leave.
        slo: seconds to its first token, counted from `offer`; None: it waits for ever.
        weight: the team's, a share relative to other teams'.
    """

    id: str
    team: str
    input_tokens: int
    work_tokens: int
    priority: Priority = "normal"
    tier: Tier = "interactive"
    slo: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits.

    Attributes:
        expected: seconds until its first token, as far as can be told.
    """

    expected: float


@dataclass(frozen=True, slots=True)
class Shed:
    """It is refused, before anything was spent on it.

    Attributes:
        request: the id.
        retry_after: whole seconds after which it would be taken, if nothing else came.
        reason: `wait`, the SLO would be missed; `full`, too many wait; `expired`, it was
            accepted and the pool turned out slower than it looked.
    """

    request: str
    retry_after: int
    reason: Literal["wait", "full", "expired"]


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a pool's queue behaves.

    Attributes:
        input_weight: service for an input token.
        output_weight: service for an output token.
        credit: seconds of the pool's whole work that a team may have saved up; 0 is plain VTC.
        ageing: seconds of waiting that lift a request by one band.
        max_waiting: requests that may wait in all.
        margin: part of the SLO that the expected time may take; the rest is for surprises.
    """

    input_weight: float = 1.0
    output_weight: float = 2.0
    credit: float = 2.0
    ageing: float = 10.0
    max_waiting: int = 10_000
    margin: float = 0.9


@dataclass(slots=True)
class _Entry:
    """A waiting request, and where it stands."""

    request: QueueRequest
    arrived: float
    order: int
    band: int
    waiting: bool = True

    def __lt__(self, other: _Entry) -> bool:
        return self.order < other.order


@dataclass(slots=True)
class _Line:
    """One team's requests in one band, and their work."""

    weight: float
    ticket: int = 0  # of its one valid entry in the band's `by_counter`
    entries: list[_Entry] = field(default_factory=list)
    waiting: int = 0
    work: int = 0


@dataclass(slots=True)
class _Band:
    """One priority of one tier."""

    lines: dict[str, _Line] = field(default_factory=dict)
    by_counter: list[tuple[float, int, str]] = field(default_factory=list)
    by_age: list[tuple[float, _Entry]] = field(default_factory=list)
    work: int = 0
    weights: float = 0.0


class _Drain:
    """How fast something leaves the queue while it is not empty there."""

    def __init__(self, assumed: float) -> None:
        self._rate = FadingRate(assumed, _MEMORY_SECONDS)
        self._since: float | None = None

    @property
    def rate(self) -> float:
        return self._rate.value

    def begin(self, now: float) -> None:
        """Something waits, perhaps since long."""
        if self._since is None:
            self._since = now

    def took(self, tokens: int, now: float, more: bool) -> None:
        """Work left the queue, and whether more of it waits."""
        if self._since is not None:
            self._rate.add(tokens, max(0.0, now - self._since))
        self._since = now if more else None

    def end(self) -> None:
        """Nothing waits any more, though nothing was served."""
        self._since = None


class _Lane:
    """The bands of one tier, with its teams' counters."""

    def __init__(self, ageing: float) -> None:
        self.counters: dict[str, float] = {}
        self.bands = tuple(_Band() for _ in _BANDS)
        self._ageing = ageing
        self._waiting_of: dict[str, int] = {}
        self._last_left = 0.0
        self._tickets = count(1)

    def __len__(self) -> int:
        return sum(self._waiting_of.values())

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

    def push(self, entry: _Entry) -> None:
        team = entry.request.team
        self._waiting_of[team] = self._waiting_of.get(team, 0) + 1
        self._join(entry)

    def _join(self, entry: _Entry) -> None:
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
            steps = _BANDS[entry.request.priority] - entry.band + 1
            heappush(band.by_age, (entry.arrived + steps * self._ageing, entry))

    def remove(self, entry: _Entry) -> None:
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

    def _leave(self, entry: _Entry) -> None:
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
        for band in self.bands[1:]:
            while band.by_age and band.by_age[0][0] <= now:
                _, entry = heappop(band.by_age)
                if entry.waiting and self.bands[entry.band] is band:
                    self._leave(entry)
                    entry.band -= 1
                    self._join(entry)

    def first(self) -> _Entry | None:
        """Whose turn it is."""
        for band in self.bands:
            if self._least(band) is not None:
                line = band.lines[band.by_counter[0][2]]
                self._clean(line, band)
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
        number = _BANDS[request.priority]
        above = sum(band.work for band in self.bands[:number])
        band = self.bands[number]
        line = band.lines.get(request.team)
        own = line.work if line else 0
        others = band.weights - (line.weight if line else 0.0)
        shared = (own + request.work_tokens) * others / request.weight
        return above + own + min(band.work - own, shared)


class FairQueue:
    """Requests that wait for room at a replica."""

    def __init__(self, policy: QueuePolicy, rate: float) -> None:
        """Args:
        policy: how it behaves.
        rate: work tokens a second that the pool is assumed to take until that is seen.
        """
        self._policy = policy
        self._lanes: dict[Tier, _Lane] = {
            "interactive": _Lane(policy.ageing),
            "batch": _Lane(policy.ageing),
        }
        self._entries: dict[str, _Entry] = {}
        self._deadlines: list[tuple[float, _Entry]] = []
        self._order = count()
        self._pool_rate = rate
        self._drain = _Drain(rate)
        self._team_drains: dict[tuple[str, Tier], _Drain] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._entries)

    def __contains__(self, request: str) -> bool:
        """Whether the request waits."""
        return request in self._entries

    def waiting(self, tier: Tier) -> int:
        """How many of a tier wait."""
        return len(self._lanes[tier])

    def counter(self, team: str, tier: Tier = "interactive") -> float:
        """The service that a team has had, in weighted tokens."""
        return self._lanes[tier].counters.get(team, 0.0)

    @property
    def expiry(self) -> float | None:
        """When the next request has waited too long, if it is still there; seconds."""
        while self._deadlines and not self._deadlines[0][1].waiting:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def rate(self) -> float:
        """Work tokens a second that leave the queue while it is not empty."""
        return min(self._pool_rate, self._drain.rate)

    def expect(self, rate: float) -> None:
        """The pool can take this many work tokens a second, by what its replicas are seen to do."""
        self._pool_rate = max(1.0, rate)

    def offer(
        self, request: QueueRequest, now: float, ahead: int = 0, service: float = 0.0
    ) -> Queued | Shed:
        """Take a request in, or refuse it.

        Args:
            request: not waiting already.
            now: seconds.
            ahead: work tokens at the replicas already that have to be done before any of the
                queue; zero if there is room.
            service: seconds from leaving the queue to the first token.

        Returns:
            What became of it.
        """
        lane = self._lanes[request.tier]
        before = lane.ahead(request)
        if request.tier == "batch":
            before += sum(band.work for band in self._lanes["interactive"].bands)
        wait = (before + ahead) / self.rate
        if lane.waits(request.team):
            drain = self._team_drains[request.team, request.tier]
            wait = max(wait, lane.own(request.team) / drain.rate)
        expected = wait + service
        if len(self._entries) >= self._policy.max_waiting:
            return Shed(request.id, max(1, ceil(expected)), "full")
        if request.slo is not None:
            late = expected - request.slo * self._policy.margin
            if late > 0 and before + ahead > 0:
                return Shed(request.id, max(1, ceil(late)), "wait")
        self._push(request, now, next(self._order))
        if request.slo is not None:
            latest = now + max(request.slo - service, 0.1 * request.slo)
            heappush(self._deadlines, (latest, self._entries[request.id]))
        return Queued(expected)

    def restore(self, request: QueueRequest, now: float) -> None:
        """Put a request back that left and was not served: first in its team's line, not charged.

        Args:
            request: as it came out of `next`.
            now: seconds.
        """
        self._push(request, now, -next(self._order))
        refund = -self._service(request, request.input_tokens, 0)
        self._lanes[request.tier].charge(request.team, refund)

    def _push(self, request: QueueRequest, now: float, order: int) -> None:
        if request.id in self._entries:
            raise ValueError(f"{request.id} waits already")
        lane = self._lanes[request.tier]
        entry = _Entry(request, now, order, _BANDS[request.priority])
        lane.lift(request.team, self._policy.credit * self.rate / request.weight)
        lane.push(entry)
        self._entries[request.id] = entry
        self._drain.begin(now)
        key = (request.team, request.tier)
        if key not in self._team_drains:
            self._team_drains[key] = _Drain(self.rate)
        self._team_drains[key].begin(now)

    def next(self, now: float, fits: Callable[[QueueRequest], bool]) -> QueueRequest | None:
        """The next request, if there is room for it.

        Nothing overtakes the one whose turn it is: a smaller one behind would take the room
        that it waits for.

        Args:
            now: seconds.
            fits: whether there is room for a request.

        Returns:
            The request, which left the queue; None if nothing waits or it does not fit.
        """
        for lane in self._lanes.values():
            lane.age(now)
            entry = lane.first()
            if entry is None:
                continue
            request = entry.request
            if not fits(request):
                return None
            self._take(entry)
            lane.charge(request.team, self._service(request, request.input_tokens, 0))
            self._drain.took(request.work_tokens, now, bool(self._entries))
            drain = self._team_drains[request.team, request.tier]
            drain.took(request.work_tokens, now, lane.waits(request.team))
            return request
        return None

    def head(self, now: float) -> QueueRequest | None:
        """The request whose turn it is; it stays."""
        for lane in self._lanes.values():
            lane.age(now)
            entry = lane.first()
            if entry is not None:
                return entry.request
        return None

    def cancel(self, request: str) -> bool:
        """The caller left. Says whether the request was waiting."""
        entry = self._entries.get(request)
        if entry is None:
            return False
        self._take(entry)
        team, tier = entry.request.team, entry.request.tier
        if not self._entries:
            self._drain.end()
        if not self._lanes[tier].waits(team):
            self._team_drains[team, tier].end()
        return True

    def finish(self, request: QueueRequest, output_tokens: int) -> None:
        """Charge output to the team; may be called repeatedly with what is new.

        Args:
            request: that left the queue.
            output_tokens: generated since the last call.
        """
        lane = self._lanes[request.tier]
        lane.charge(request.team, self._service(request, 0, output_tokens))

    def expired(self, now: float) -> Iterator[Shed]:
        """Refuse those whose time is over; they leave the queue.

        Args:
            now: seconds.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            _, entry = heappop(self._deadlines)
            if entry.waiting:
                backlog = sum(band.work for band in self._lanes["interactive"].bands)
                self.cancel(entry.request.id)
                yield Shed(entry.request.id, max(1, ceil(backlog / self.rate)), "expired")

    def _take(self, entry: _Entry) -> None:
        self._lanes[entry.request.tier].remove(entry)
        del self._entries[entry.request.id]

    def _service(self, request: QueueRequest, input_tokens: int, output_tokens: int) -> float:
        policy = self._policy
        tokens = policy.input_weight * input_tokens + policy.output_weight * output_tokens
        return tokens / request.weight
