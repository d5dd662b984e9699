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
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Literal

from sluice.router.pool.active_teams import ActiveTeams
from sluice.router.pool.lane import Entry, Lane
from sluice.router.pool.queue_request import BANDS, Priority, QueueRequest, Tier
from sluice.router.pool.rate import Drain, PeakRate

__all__ = [
    "FairQueue",
    "Priority",
    "QueuePolicy",
    "QueueRequest",
    "Queued",
    "Shed",
    "Tier",
]

#: Time constant in seconds with which the rate of draining is forgotten.
_MEMORY_SECONDS = 10.0

#: The same, of the most that was seen of the pool's service.
_CREDIT_MEMORY_SECONDS = 60.0


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
        credit: seconds of the pool's whole service, as it was at most of late, that a team may
            have saved up; 0 is plain VTC.
        ageing: seconds of waiting that lift a request by one band.
        max_waiting: requests that may wait in all.
        margin: part of the SLO that the expected time may take; the rest is for surprises.
        fill_part: part of each replica's room that may be filled, at most, by what fills the
            slack: batch requests, and those of teams above their share.
        least_part: part that a team above its share may fill, at least.
        least_share: part of its share of all sequences that such a team may have in any case.
        spare: so many times of what the teams within their shares use is left to them.
    """

    input_weight: float = 1.0
    output_weight: float = 2.0
    credit: float = 3.0
    ageing: float = 10.0
    max_waiting: int = 10_000
    margin: float = 0.9
    fill_part: float = 0.75
    least_part: float = 0.25
    least_share: float = 0.25
    spare: float = 2.0


class FairQueue:
    """Requests that wait for room at a replica."""

    def __init__(self, policy: QueuePolicy, rate: float) -> None:
        """Args:
        policy: how it behaves.
        rate: work tokens a second that the pool is assumed to take until that is seen.
        """
        self._policy = policy
        self._lanes: dict[Tier, Lane] = {
            "interactive": Lane(policy.ageing),
            "batch": Lane(policy.ageing),
        }
        self._active = ActiveTeams()
        self._entries: dict[str, Entry] = {}
        self._deadlines: list[tuple[float, Entry]] = []
        self._order = count()
        self._pool_rate, self._gateways = rate, 1
        self._served = PeakRate(_CREDIT_MEMORY_SECONDS)
        self._drain = Drain(_MEMORY_SECONDS)
        self._team_drains: dict[tuple[str, Tier], Drain] = {}
        #: When the teams above their shares have had what is left to them, see `_fill`.
        self.opens = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._entries)

    def __contains__(self, request: str) -> bool:
        """Whether the request waits."""
        return request in self._entries

    def waiting(self, tier: Tier) -> int:
        """How many of a tier wait."""
        return len(self._lanes[tier])

    def waiting_of(self, team: str, tier: Tier) -> int:
        """How many requests of a team wait in a tier."""
        return self._lanes[tier].waiting_of(team)

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

    def expect(self, rate: float, gateways: int = 1) -> None:
        """The pool can take this many work tokens a second, by what its replicas are seen to do,
        from so many gateways together."""
        self._pool_rate, self._gateways = max(1.0, rate), gateways

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
        self._asks(request, now)
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

    def passes(self, request: QueueRequest, now: float) -> None:
        """A request goes by while nobody waits; its team is charged as if it had left the queue."""
        lane = self._lanes[request.tier]
        self._served.look(now, held_back=self._active.crowded or not self._entries)
        lane.pass_by(request.team, self._credit(request))
        self._asks(request, now)
        self._charge(request, request.input_tokens, 0)
        self._fill(request, request.work_tokens, now)

    def restore(self, request: QueueRequest, now: float) -> None:
        """Put a request back that left and was not served: first in its team's line, not charged,
        and to be refused when its time is over, as before.

        Args:
            request: as it came out of `next`.
            now: seconds.
        """
        self._push(request, now, -next(self._order))
        self._charge(request, -request.input_tokens, 0)
        self._fill(request, -request.work_tokens, now)
        if request.slo is not None:
            latest = request.arrived + request.slo * self._policy.margin
            heappush(self._deadlines, (latest, self._entries[request.id]))

    def _push(self, request: QueueRequest, now: float, order: int) -> None:
        if request.id in self._entries:
            raise ValueError(f"{request.id} waits already")
        lane = self._lanes[request.tier]
        entry = Entry(request, now, order, BANDS[request.priority])
        lane.lift(request.team, self._credit(request))
        lane.push(entry)
        self._entries[request.id] = entry
        self._drain.begin(now)
        key = (request.team, request.tier)
        if key not in self._team_drains:
            self._team_drains[key] = Drain(_MEMORY_SECONDS)
        self._team_drains[key].begin(now)

    def part(self, request: QueueRequest, running: float, now: float) -> float:
        """The part of a replica's room that a request may fill: 1, or less if it fills what others
        leave, as one of the batch tier does, or of a team that asks for more than its share of
        what all ask too much of.

        What becomes free goes to those that have had least anyway. But where one team has every
        sequence of an engine's batch, the next of another waits for the end of a whole answer, and
        where it has a replica's queue, for its prompts. So it leaves them twice the room that they
        use, in which what comes by chance at once finds a place, see `ReplicaBound.admits`, but
        for a quarter of its own share, which it has at any time.

        Args:
            request: the request.
            running: part of the pool's sequences that its team has.
            now: seconds.
        """
        policy = self._policy
        if request.tier == "batch":
            return policy.fill_part
        if not self._over(request, now):
            return 1.0
        if running < policy.least_share * self._active.share(request.team):
            return policy.fill_part
        return max(self._left(), policy.least_part)

    def held_back(self, request: QueueRequest, now: float) -> bool:
        """Whether a request waits whatever room there is: its team is above its share, and such
        teams have had what is left to them, see `_fill`."""
        return now < self.opens and self._over(request, now)

    def _left(self) -> float:
        """The part of what the pool serves that the teams within their shares leave to others, if
        they are to have room for what comes by chance."""
        return 1 - self._policy.spare * self._active.within() / self._most

    def _fill(self, request: QueueRequest, work: int, now: float) -> None:
        """Count what a team above its share has computed: the prompts of all such teams together
        take no more of the engines' time than is left, or than their shares, and evenly.

        Else they take all that the others don't at this moment: the engines never rest then, and
        each request of the others meets a step of theirs.
        """
        if self._over(request, now) and (left := self._left()) < 1:
            part = max(left, self._active.share_of_over())
            begun = max(self.opens, now) if work > 0 else self.opens
            self.opens = begun + work / (part * self._pool_rate / self._gateways)

    def fills_slack(self, request: QueueRequest, now: float) -> bool:
        """Whether a request fills what others leave: of the batch tier, or of a team above its
        share."""
        return request.tier == "batch" or self._over(request, now)

    def _over(self, request: QueueRequest, now: float) -> bool:
        return request.tier == "interactive" and self._active.over(request.team, self._most, now)

    def next(self, now: float, fits: Callable[[QueueRequest], bool]) -> QueueRequest | None:
        """The next request, if there is room for it.

        Nothing overtakes the one whose turn it is: a smaller one behind would take the room
        that it waits for. But one whose team has had more than its share waits for no room that
        it leaves to the others.

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
            if self.held_back(request, now) or not fits(request):
                if not self._over(request, now):
                    return None
                entry = self._first_within(lane, now)
                if entry is None or not fits(entry.request):
                    return None
                request = entry.request
            self.take(request, now)
            return request
        return None

    def head(self, now: float) -> QueueRequest | None:
        """The request whose turn it is, or would be but for the teams above their shares; it
        stays."""
        for lane in self._lanes.values():
            lane.age(now)
            entry = lane.first()
            if entry is not None and self._over(entry.request, now):
                entry = self._first_within(lane, now) or entry
            if entry is not None:
                return entry.request
        return None

    def _first_within(self, lane: Lane, now: float) -> Entry | None:
        """Whose turn it would be but for the teams above their shares."""
        return lane.first_but(lambda each: self._over(each, now))

    def take(self, request: QueueRequest, now: float) -> None:
        """A request that waits leaves the queue to be served, whosever turn it is."""
        self._served.look(now, held_back=self._active.crowded or not self._entries)
        self._charge(request, request.input_tokens, 0)
        self._fill(request, request.work_tokens, now)
        self._remove(self._entries[request.id])
        work, rate = request.work_tokens, self._pool_rate
        self._drain.took(work, now, bool(self._entries), rate)
        drain = self._team_drains[request.team, request.tier]
        drain.took(work, now, self._lanes[request.tier].waits(request.team), rate)

    def cancel(self, request: str) -> bool:
        """The caller left. Says whether the request was waiting."""
        entry = self._entries.get(request)
        if entry is None:
            return False
        self._remove(entry)
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
        self._charge(request, 0, output_tokens)

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

    def _remove(self, entry: Entry) -> None:
        self._lanes[entry.request.tier].remove(entry)
        del self._entries[entry.request.id]

    def _credit(self, request: QueueRequest) -> float:
        """What its team may save up, in weighted tokens for its weight."""
        return self._policy.credit * self._most / request.weight

    @property
    def _most(self) -> float:
        """Weighted tokens a second that the pool has served at most of late."""
        return self._pool_rate if self._served.value is None else self._served.value

    def _asks(self, request: QueueRequest, now: float) -> None:
        if request.tier == "interactive":
            tokens = self._policy.input_weight * request.input_tokens
            self._active.asks(request.team, request.weight, tokens, now)

    def _charge(self, request: QueueRequest, input_tokens: int, output_tokens: int) -> None:
        policy = self._policy
        service = policy.input_weight * input_tokens + policy.output_weight * output_tokens
        self._served.add(service)
        if output_tokens and request.tier == "interactive":
            self._active.generated(request.team, policy.output_weight * output_tokens)
        self._lanes[request.tier].charge(request.team, service / request.weight)
