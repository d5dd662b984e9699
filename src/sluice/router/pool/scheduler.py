"""One gateway process's view of a pool, and what it decides: accept, place, yield, refuse.

The pieces beside this file each decide one thing; this puts them in order:

    submit        refuse at the door, or queue
    decide        what leaves the queue, and where to; what makes room for it
    first_token   the prompt is computed: learn the rate, correct the index
    ended         room again

The caller acts on what `decide` returns and reports what happens. Hints for the other gateways
pile up until `take_hints`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from math import ceil

from sluice.router.pool.actions import Action, Dispatch, PoolRequest, Yield
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.capacity import Capacity
from sluice.router.pool.fair_queue import FairQueue, QueuePolicy, QueueRequest, Shed
from sluice.router.pool.gateway_share import GatewayShare
from sluice.router.pool.index import PrefixIndex
from sluice.router.pool.load import SILENCE_SECONDS, Hint, LoadBook
from sluice.router.pool.placement import Decision, Placement
from sluice.router.pool.slack_flights import BATCH_FIRST, Flight, SlackFlights
from sluice.router.pool.team_sequences import TeamSequences
from sluice.router.pool.turns import Turns

__all__ = ["Action", "Dispatch", "PoolRequest", "PoolScheduler", "Yield"]


class PoolScheduler:
    """Decides for one pool in one gateway process."""

    def __init__(
        self,
        gateway: str,
        placement: Placement,
        bounds: BoundPolicy | None = None,
        queue: QueuePolicy | None = None,
        hint_seconds: float = 0.0,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        """Args:
        gateway: a name that no other process has or had, since hints are numbered by it.
        placement: the policy.
        bounds: how deep queues at replicas may be; None: as deep as the replicas take.
        queue: how the fair queue behaves; None: the defaults.
        hint_seconds: how long hints take; long prompts then wait for the gateway's turn.
        silence: seconds after which a gateway that says nothing is forgotten.
        """
        self.index = PrefixIndex()
        self.loads = LoadBook(gateway, silence)
        self.queue = FairQueue(queue or QueuePolicy(), rate=1.0)
        self._placement = placement
        self._capacity = Capacity(bounds)
        self._share = GatewayShare(self.loads, self._capacity)
        self._turns = Turns(gateway, hint_seconds)
        self._held: dict[str, tuple[float, PoolRequest]] = {}
        self._waiting: dict[str, tuple[PoolRequest, QueueRequest]] = {}
        self._flights: dict[str, Flight] = {}
        self._sequences = TeamSequences()
        self._slack = SlackFlights()
        self._changed: set[str] = set()  # replicas of which the others have not heard the last
        self._placed: list[tuple[str, tuple[int, ...]]] = []  # blocks that went to replicas
        #: So many batch requests are to make room at each replica for other gateways.
        self.pressed = 0
        self._decided = float("-inf")

    def join(self, replica: str, limits: ReplicaLimits) -> None:
        """A replica takes requests from now on.

        Args:
            replica: its name.
            limits: what it declares.

        Raises:
            ValueError: it is there already.
        """
        self.index.add(replica, limits.kv_blocks)
        self.loads.add(replica)
        self.loads[replica].free_blocks = limits.kv_blocks
        self._capacity.join(self.loads[replica], limits)
        self._slack.join(replica)
        self.queue.expect(self._capacity.rate, self._share.gateways)

    def leave(self, replica: str) -> None:
        """A replica is gone, and its requests with it; an unknown one is ignored."""
        self.index.remove(replica)
        self.loads.remove(replica)
        self._capacity.leave(replica)
        self._slack.leave(replica)
        gone = [key for key, flight in self._flights.items() if flight.decision.replica == replica]
        for key in gone:
            self._sequences.ended(self._flights.pop(key).request)
        self.queue.expect(self._capacity.rate, self._share.gateways)

    def weigh(self, replica: str, weight: float) -> None:
        """Give a replica a share of the usual load: 0 for none, as while it drains."""
        self.loads[replica].weight = weight
        self._reckon(replica)

    def submit(self, request: PoolRequest, now: float) -> Shed | None:
        """Queue a request, or refuse it.

        Args:
            request: new.
            now: seconds.

        Returns:
            The refusal; None if it waits, perhaps only until the next `decide`.
        """
        work = self._work(request)
        if not len(self.queue):
            wait = self._turns.wait(self.loads.peers, self._capacity.prefill_seconds(work), now)
            if wait > 0:
                self._held[request.id] = (now + wait, request)
                return None
        return self._offer(request, work, now)

    def dispatch_now(self, request: PoolRequest, now: float) -> Decision | None:
        """What `submit` and `decide` would come to where nobody waits and there is room, for less.

        Args:
            request: new.
            now: seconds.

        Returns:
            Where it went; None, and nothing has happened, in every other case.
        """
        if len(self.queue) or self._held:
            return None
        prompt = request.prompt
        depths = self.index.match(prompt.hashes)
        work = prompt.uncached(max(depths.values(), default=0))
        peers = self.loads.peers
        if peers and (
            self._share.used()
            or self._share.stands_back(request.tier)
            or self._turns.wait(peers, self._capacity.prefill_seconds(work), now) > 0
        ):
            return None
        open_to = [load for load in self.loads if load.weight > 0]
        if not open_to:
            return None
        decision = self._placement.place(prompt, open_to, depths)
        load, bound = self.loads[decision.replica], self._capacity[decision.replica]
        queued = request.queued(work, now)
        if self.queue.held_back(queued, now):
            return None
        part, context = self._part(queued, now), request.context_tokens
        slack = self.queue.fills_slack(queued, now)
        has_room = bound.admits(load, decision.uncached_tokens, context, part, now)
        if not has_room or (not slack and self._in_front(decision.replica)):
            return None  # there may be room elsewhere, or it has to be made
        self.queue.passes(queued, now)
        self._dispatch(request, queued, decision, now, slack=slack)
        return decision

    def wake(self) -> float | None:
        """When `decide` is to be called at the latest, in seconds; None: only after a report."""
        times = [due for due, _ in islice(self._held.values(), 1)]
        if len(self.queue):
            if (expiry := self.queue.expiry) is not None:
                times.append(expiry)
            if self.queue.opens > self._decided:
                times.append(self.queue.opens)
            if (opens := self._capacity.opens_after(self.loads, self._decided)) is not None:
                times.append(opens)
        return min(times, default=None)

    def decide(self, now: float) -> list[Action]:
        """What is to be done now, in order.

        Args:
            now: seconds.
        """
        self._decided = now
        actions: list[Action] = []
        while self._held:
            due, request = next(iter(self._held.values()))
            if due > now:
                break
            del self._held[request.id]
            refusal = self._offer(request, self._work(request), now)
            if refusal is not None:
                actions.append(refusal)
        for shed in self.queue.expired(now):
            del self._waiting[shed.request]
            actions.append(shed)
        actions += self._make_room_elsewhere(now)
        while len(self.queue):
            placed: list[Decision] = []
            fits = partial(self._fits, now, placed)
            queued = self.queue.next(now, fits) or self._make_room(fits, actions, now)
            if queued is None:
                break
            request, _ = self._waiting.pop(queued.id)
            slack = self.queue.fills_slack(queued, now)
            if not slack:
                actions += self._take_back(self._in_front(placed[0].replica), now)
            self._dispatch(request, queued, placed[0], now, slack=slack)
            actions.append(Dispatch(request, placed[0]))
        self._tell_waiting()
        return actions

    def first_token(self, request: str, now: float, cached_tokens: int | None = None) -> None:
        """The first token came; repeated or unknown, nothing happens.

        Args:
            request: its id.
            now: seconds.
            cached_tokens: of the prompt that the engine found in its cache, where it says so.
        """
        flight = self._flights.get(request)
        if flight is None or flight.started:
            return
        replica, prompt = flight.decision.replica, flight.request.prompt
        self._started(flight)
        computed = flight.decision.uncached_tokens
        if cached_tokens is not None:
            computed = max(1, prompt.tokens - cached_tokens)
            self._correct(flight, ceil(cached_tokens / prompt.block_tokens))
        self._capacity[replica].first_token(now, flight.dispatched, computed)
        self._reckon(replica)

    def assume_first_token(self, request: str) -> None:
        """Its prompt is probably computed, though nobody can see it, as of an answer that comes
        whole; nothing is learnt from it. Repeated or unknown, nothing happens."""
        flight = self._flights.get(request)
        if flight is not None and not flight.started:
            self._started(flight)

    def found_cached(self, request: str, blocks: int) -> None:
        """The engine says how many leading blocks of its prompt it found in its cache."""
        flight = self._flights.get(request)
        if flight is not None:
            self._correct(flight, blocks)

    def shown(self, request: str) -> None:
        """Its caller has seen output of it: it is not taken back to make room any more."""
        flight = self._flights.get(request)
        if flight is not None:
            self._slack.remove(flight)

    def move(self, request: str, avoid: Collection[str], now: float) -> Decision | None:
        """Its replica failed it before it answered: it goes elsewhere, at once and at no charge,
        since it had its turn.

        Args:
            request: its id.
            avoid: replicas that it must not go to.
            now: seconds.

        Returns:
            Where to; None, and it is over, where no other replica takes requests.
        """
        flight = self._flights.get(request)
        if flight is None:
            return None
        self.ended(request, now)
        moved = flight.request
        depths = self.index.match(moved.prompt.hashes)
        others = [load for load in self.loads if load.weight > 0 and load.replica not in avoid]
        if not others:
            return None
        decision = self._placement.place(moved.prompt, others, depths)
        self._dispatch(moved, flight.queued, decision, now, slack=flight.slack)
        return decision

    def generated(self, request: str, tokens: int) -> None:
        """Output came, which its team is charged for; unknown, nothing happens."""
        flight = self._flights.get(request)
        if flight is not None:
            self.queue.finish(flight.queued, tokens)

    def ended(self, request: str, now: float, *, computed: bool = False) -> None:
        """It is over: complete, failed, or abandoned while it ran; unknown, nothing happens.

        Args:
            request: its id.
            now: seconds.
            computed: its prompt was, though nobody may have seen its first token.
        """
        flight = self._flights.pop(request, None)
        if flight is None:
            return
        replica = flight.decision.replica
        self._slack.remove(flight)
        self._sequences.ended(flight.request)
        self.loads.ended(replica, flight.prefill_tokens, flight.request.context_tokens)
        self._changed.add(replica)
        if not (flight.started or computed):
            # Nobody knows how much of it was computed.
            self.index.forget(
                replica, flight.request.prompt.hashes[flight.decision.cached_blocks :]
            )

    def cancel(self, request: str, now: float) -> str | None:
        """The caller left.

        Args:
            request: its id.
            now: seconds.

        Returns:
            The replica at which it is to be aborted; None if it only waited.
        """
        if self._held.pop(request, None) is not None:
            return None
        if self.queue.cancel(request):
            del self._waiting[request]
            return None
        flight = self._flights.get(request)
        if flight is None:
            return None
        self.ended(request, now)
        return flight.decision.replica

    def receive(self, hint: Hint, now: float) -> None:
        """Take in what another gateway says.

        Args:
            hint: from any gateway.
            now: seconds.
        """
        if hint.gateway == self.loads.gateway:
            return
        if self.loads.receive(hint, now) and hint.replica in self._capacity:
            self._capacity[hint.replica].began(now)
        self.pressed = max(self.pressed, hint.urgent)
        if hint.hashes:
            self._insert(hint.replica, hint.hashes)

    def announce(self, now: float) -> None:
        """Once a second or so: have hints of all replicas ready, and forget silent gateways."""
        self.loads.expire(now)
        self._changed.update(load.replica for load in self.loads)

    def prefill_rate(self, replica: str) -> float | None:
        """Prompt tokens a second that a replica is seen to compute; None: there is no such one."""
        return self._capacity[replica].prefill_rate if replica in self._capacity else None

    def take_hints(self) -> list[Hint]:
        """What the others should hear: of each replica that changed how it is now, and all blocks
        that went there; each is returned once."""
        changed, self._changed = self._changed, set()
        placed, self._placed = self._placed, []
        told = [(replica, hashes) for replica, hashes in placed if replica in self.loads]
        rest = changed.difference(replica for replica, _ in told)
        told += [(replica, ()) for replica in sorted(rest) if replica in self.loads]
        return [self.loads.hint(replica, hashes) for replica, hashes in told]

    def _work(self, request: PoolRequest) -> int:
        depths = self.index.match(request.prompt.hashes)
        return request.prompt.uncached(max(depths.values(), default=0))

    def _offer(self, request: PoolRequest, work: int, now: float) -> Shed | None:
        queued = request.queued(work, now)
        slo = request.slo is not None
        service = self._capacity.service_seconds(self.loads, work) if slo else 0.0
        outcome = self.queue.offer(queued, now, service=service)
        if isinstance(outcome, Shed):
            return outcome
        self._waiting[request.id] = (request, queued)
        return None

    def _tell_waiting(self) -> None:
        """The other gateways hear of the queue with every hint, and when it begins or ends."""
        before = self.loads.waiting > 0, self.loads.urgent > 0
        self.loads.waiting = len(self.queue)
        self.loads.urgent = self.queue.waiting("interactive")
        if before != (self.loads.waiting > 0, self.loads.urgent > 0):
            self._changed.update(load.replica for load in islice(self.loads, 1))

    def _fits(self, now: float, placed: list[Decision], queued: QueueRequest) -> bool:
        """Place it among the replicas that have room; the decision goes to `placed`."""
        request, _ = self._waiting[queued.id]
        depths = self.index.match(request.prompt.hashes)
        if not self._may_go(queued):
            return False
        part, context = self._part(queued, now), request.context_tokens
        candidates = self._capacity.with_room(
            self.loads, request.prompt, depths, context, part, now
        )
        if not candidates:
            return False
        placed.append(self._placement.place(request.prompt, candidates, depths))
        return True

    def _may_go(self, queued: QueueRequest) -> bool:
        """Whether the other gateways leave it to this one to send a request."""
        # The share is for those who crowd the queue, not for a team with one request.
        crowds = self.queue.waiting_of(queued.team, queued.tier) > 1
        return not (crowds and self._share.used()) and not self._share.stands_back(queued.tier)

    def _part(self, queued: QueueRequest, now: float) -> float:
        """The part of a replica's room that a request may fill."""
        running = self._sequences.of(queued.team) * self._share.gateways
        return self.queue.part(queued, running / max(1, self._capacity.sequences), now)

    def _reckon(self, replica: str) -> None:
        self._capacity.reckon(self.loads[replica])
        self.queue.expect(self._capacity.rate, self._share.gateways)

    def _dispatch(
        self,
        request: PoolRequest,
        queued: QueueRequest,
        decision: Decision,
        now: float,
        *,
        slack: bool,
    ) -> None:
        flight = self._flights[request.id] = Flight(request, queued, decision, now, slack)
        replica, hashes = decision.replica, request.prompt.hashes
        if self.loads[replica].queued_prefill_tokens == 0:
            self._capacity[replica].began(now)
        self._slack.add(flight)
        self._sequences.began(request)
        self.loads.dispatched(replica, decision.uncached_tokens, request.context_tokens)
        self._changed.add(replica)
        if hashes:
            self._insert(replica, hashes)
            self._placed.append((replica, hashes))

    def _started(self, flight: Flight) -> None:
        """Its prompt is computed."""
        self.loads.first_token(flight.decision.replica, flight.prefill_tokens)
        self._changed.add(flight.decision.replica)
        flight.started = True
        self._slack.computed(flight)

    def _insert(self, replica: str, hashes: Sequence[int]) -> None:
        if replica in self.index:
            self.index.insert(replica, hashes)
            self.loads[replica].free_blocks = self.index.free(replica)

    def _make_room(
        self, fits: Callable[[QueueRequest], bool], actions: list[Action], now: float
    ) -> QueueRequest | None:
        """Take back what fills slack where that lets the interactive one in whose turn it is,
        which left the queue then."""
        head = self.queue.head(now)
        if head is None or head.tier == "batch" or not self._may_go(head):
            return None
        if self.queue.held_back(head, now):
            return None
        request, _ = self._waiting[head.id]
        depths, part = self.index.match(request.prompt.hashes), self._part(head, now)
        tiers = ("batch",) if self.queue.fills_slack(head, now) else BATCH_FIRST
        gone = self._slack.in_the_way(request, tiers, depths, self.loads, self._capacity, part, now)
        for flight in gone:
            self.ended(flight.request.id, now)
        # Before they wait again: what they were charged is theirs then, and it may be their turn.
        served = bool(gone) and fits(head)
        if served:
            self.queue.take(head, now)
        actions += [self._wait_again(flight, now) for flight in gone]
        return head if served else None

    def _make_room_elsewhere(self, now: float) -> list[Action]:
        """Take back as many batch requests at each replica as interactive ones wait elsewhere."""
        pressed, self.pressed = self.pressed, 0
        if not pressed or not self.loads.urgent_elsewhere:
            return []
        return self._take_back(self._slack.youngest(pressed), now)

    def _in_front(self, replica: str) -> list[Flight]:
        return self._slack.in_front(replica, self._capacity[replica].limits.step_tokens)

    def _take_back(self, flights: Sequence[Flight], now: float) -> list[Action]:
        for flight in flights:
            self.ended(flight.request.id, now)
        return [self._wait_again(flight, now) for flight in flights]

    def _wait_again(self, flight: Flight, now: float) -> Yield:
        queued = flight.queued_again()
        self.queue.restore(queued, now)
        self._waiting[flight.request.id] = (flight.request, queued)
        return Yield(flight.request.id, flight.decision.replica)

    def _correct(self, flight: Flight, cached: int) -> None:
        """Correct the index, unless the difference is what rounding makes of it: an engine computes
        at least a prompt's last token, and with it the block."""
        believed = flight.decision.cached_blocks
        if abs(believed - cached) > 1:
            hashes = flight.request.prompt.hashes
            self.index.correct(flight.decision.replica, hashes, believed, cached)
