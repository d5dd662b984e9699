"""The pool as a backend: requests wait for their turn, go to a replica, and to another if it fails.

`PoolScheduler` decides; here its decisions meet the network. Until a replica has begun to answer
nothing has been shown to the caller, so that a request whose replica refuses it, can't be reached,
breaks off or is ejected goes to another one, `MAX_MOVES` times at most. What fails everywhere is
taken for the request's own fault: a replica's 5xx counts against it only when another replica
answers the same request well.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any

from sluice.backends.base import (
    Backend,
    BackendError,
    ConnectFailed,
    ConnectionLost,
    Dialect,
    Overloaded,
    Placed,
    PoolFailed,
    UpstreamRequest,
    UpstreamResponse,
    UpstreamTimeout,
)
from sluice.backends.replicas import Announcement
from sluice.backends.vllm import VLLM_DIALECT, VLLM_PRIORITY_DIALECT, VLLMBackend, VLLMConfig
from sluice.backends.vllm import VLLMInspector as Inspector
from sluice.router.pool.blocks import BLOCK_BYTES
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.clock import shared_clock
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.description import described
from sluice.router.pool.engine_caches import EngineCaches, FinishedPrompt
from sluice.router.pool.fair_queue import Shed
from sluice.router.pool.flight import Flight, overloaded
from sluice.router.pool.gathering import Gathering
from sluice.router.pool.live_response import PooledResponse, ReportedUsage, until_token
from sluice.router.pool.membership import Event, Member, joined
from sluice.router.pool.observer import MoveReason, PoolObserver
from sluice.router.pool.output_lengths import OutputLengths
from sluice.router.pool.placement import POLICIES, Decision
from sluice.router.pool.prompt_text import PromptReader
from sluice.router.pool.replica_limits import limits_of
from sluice.router.pool.roster import Replica, Roster, static_name
from sluice.router.pool.scheduler import Dispatch, PoolScheduler, Yield
from sluice.router.pool.snapshot import PoolSnapshot, take_snapshot

#: How often a request goes to another replica because one failed it.
MAX_MOVES = 2

#: How long it takes until the other gateways know what this one did.
HINT_SECONDS = 0.06

Connect = Callable[[str], tuple[Backend, Inspector]]


class PoolBackend:
    """See `Backend`, and the module.

    Attributes:
        config: what operators want of it.
        scheduler: decides.
        roster: the replicas.
        caches: what their engines say of their caches; None: that is not listened to.
        observer: is told what it does.
        clock: seconds that never go back.
    """

    kind = "vllm"

    def __init__(
        self,
        config: PoolConfig,
        observer: PoolObserver,
        gateway: str,
        *,
        connect: Connect | None = None,
        clock: Callable[[], float] | None = None,
        random: Random | None = None,
    ) -> None:
        """Args:
        config: what operators want of it.
        observer: is told what it does.
        gateway: a name that no other process has or had.
        connect: makes what speaks to a replica at an address.
        clock: see there; by default one that gateways share.
        random: breaks ties.
        """
        self.config = config
        self.dialect: Dialect = VLLM_PRIORITY_DIALECT if config.engine_priority else VLLM_DIALECT
        self.observer = observer
        self._connect = connect or self._connect_by_http
        self.clock = clock or shared_clock()
        target = config.interactive_slo
        self.scheduler = PoolScheduler(
            gateway,
            POLICIES[config.placement](random or Random()),
            None if target is None else BoundPolicy(target),
            config.queue,
            HINT_SECONDS if config.shared else 0.0,
        )
        self.roster = Roster(self.scheduler, config.membership, self._limits, self._changed)
        self.caches = EngineCaches(self.scheduler) if config.kv_events else None
        self._gathering = Gathering()
        self._reader = PromptReader(config.name.encode()[:64], 1 / config.bytes_per_token)
        self._lengths = OutputLengths()
        self._tells_cached = False
        self._flights: dict[str, Flight] = {}
        self._waiting: dict[str, Flight] = {}  # those of them that have no replica
        self._unseen: dict[str, Flight] = {}  # whole answers, whose prompt may be computed or not
        self._numbers = count(1)
        self._waking: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        for url in config.replicas:
            self.join(static_name(url), url)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Have a replica answer. See `Backend.send`."""
        request_id = str(next(self._numbers))
        begin = partial(self._begin, request, request_id, asyncio.current_task())
        try:
            flight, tagged = await self._gathering.do(begin)
            return await self._serve(flight, tagged)
        except BaseException:
            begun = self._flights.get(request_id)
            if begun is not None:
                self._forget(begun)
                self.scheduler.cancel(request_id, self.clock())
                self.act(self.clock())
            raise

    def _begin(
        self, request: UpstreamRequest, request_id: str, task: asyncio.Task[Any] | None
    ) -> tuple[Flight, UpstreamRequest]:
        """Find a request a replica, or let it wait for one; gives it as it is to be sent.

        Raises:
            Overloaded: it would come too late.
        """
        now = self.clock()
        prompt, size = self._reader.read(request.body)
        expected = self._lengths.expected(request.max_tokens)
        wanted = described(request, self.config, request_id, prompt, expected)
        flight = Flight(request_id, wanted, request.stream, size, now, task)
        if self.caches is not None:
            request = self.caches.tagged(request, request_id, prompt.hashes)
        decision = self.scheduler.dispatch_now(wanted, now)
        if decision is not None:
            flight.assign(decision, now)
            self._tell(flight, request, decision)
        elif not self.roster.ready():
            raise self._refused(flight, request, "no_replica", self._nobody_ready(now))
        else:
            shed = self.scheduler.submit(wanted, now)
            if shed is not None:
                raise self._refused(flight, request, shed.reason, overloaded(shed))
            self._waiting[flight.id] = flight
        self._flights[flight.id] = flight
        if not flight.stream:
            self._unseen[flight.id] = flight
        self.act(now)
        return flight, request

    async def close(self) -> None:
        """Release connections."""
        if self._waking is not None:
            self._waking.cancel()
        for replica in self.roster:
            await replica.close()

    def join(self, replica_id: str, url: str, announcement: Announcement | None = None) -> Replica:
        """Take a replica in; it takes requests once it has answered a probe."""
        backend, inspector = self._connect(url)
        now = self.clock()
        shown = self._shown_name(replica_id)
        replica = Replica(replica_id, url, shown, backend, inspector, joined(now), now)
        replica.announcement = announcement
        self.roster.add(replica)
        return replica

    async def leave(self, replica: Replica) -> None:
        """Forget a replica; requests that are still there end without it."""
        self.roster.remove(replica.id)
        self.observer.replica_left(self.config.name, replica.id)
        await replica.close()

    def act(self, now: float) -> None:
        """Have those that wait go or be refused, if it is time."""
        if not self._waiting and not self.scheduler.pressed:
            return
        for action in self.scheduler.decide(now):
            if isinstance(action, Dispatch):
                self._waiting.pop(action.request.id).assign(action.decision, now)
            elif isinstance(action, Yield):
                self.observer.request_yielded(self.config.name)
                flight = self._waiting[action.request] = self._flights[action.request]
                flight.interrupt("yielded")
            else:
                self._waiting.pop(action.request).refuse(action)
        self._wake_by(self.scheduler.wake(), now)

    def tick(self, now: float) -> None:
        """What passes with time, several times a second."""
        self.scheduler.loads.expire(now)
        self.roster.tick(now)
        if self.caches is not None:
            self.caches.settle(now)
        for flight in tuple(self._unseen.values()):
            self._assume_first_token(flight, now)
        self.act(now)

    def observe(self, now: float) -> None:
        """Look for streams that stand still, and have the observer see how the pool is; once a
        second or so."""
        stall = self.config.health.stall
        for flight in self._flights.values():
            still = flight.answered and flight.stream and not flight.stalled
            replica = self.roster.get(flight.replica)
            if still and now - flight.heard > stall and replica is not None:
                flight.stalled = True
                self.roster.report(replica, Event.REQUEST_STALLED, now)
        self.observer.pool_seen(self.config.name, self.snapshot(now))

    def snapshot(self, now: float | None = None) -> PoolSnapshot:
        """How the pool is."""
        waiting = Counter(
            (flight.request.tier, flight.request.priority) for flight in self._waiting.values()
        )
        at = self.clock() if now is None else now
        return take_snapshot(self.config, self.scheduler, self.roster, waiting, at, self.caches)

    def busy(self, replica: Replica) -> bool:
        """Whether requests of this gateway are at a replica."""
        return self.scheduler.loads.own_running(replica.id) > 0

    def drain(self, replica_id: str) -> None:
        """Give a replica no more requests; those that it has finish.

        Raises:
            KeyError: there is no such replica.
        """
        self.roster.report(self.roster[replica_id], Event.DRAIN_ASKED, self.clock())

    def undrain(self, replica_id: str) -> None:
        """Let a drained replica take requests again, once it has answered a probe.

        Raises:
            KeyError: there is no such replica.
        """
        self.roster.readmit(self.roster[replica_id], self.clock())

    def heard(self, flight: Flight) -> None:
        """See `ResponseObserver`."""
        now = self.clock()
        flight.heard = now
        replica = self.roster.get(flight.replica)
        if replica is not None:
            replica.heard = now

    def over(self, flight: Flight, usage: ReportedUsage | None, failed: bool) -> None:
        """See `ResponseObserver`."""
        now = self.clock()
        self._forget(flight)
        if failed:
            self._blame(flight.replica, now)
        if usage is not None:
            self._learn(flight, usage)
        self.scheduler.ended(flight.id, now, computed=not failed)
        self.act(now)

    def _wake_by(self, due: float | None, now: float) -> None:
        """See that `act` is called at a time, or earlier."""
        if due is None or due >= self._wakes_at:
            return
        if self._waking is not None:
            self._waking.cancel()
        self._wakes_at = due
        loop = asyncio.get_running_loop()
        self._waking = loop.call_later(max(0.0, due - now), self._woken)

    def _woken(self) -> None:
        self._waking, self._wakes_at = None, math.inf
        self.act(self.clock())

    async def _serve(self, flight: Flight, request: UpstreamRequest) -> UpstreamResponse:
        while True:
            decision = flight.decision or await flight.turn()
            if isinstance(decision, Shed):
                raise self._refused(flight, request, decision.reason, overloaded(decision))
            if decision is not flight.told:
                self._tell(flight, request, decision)
            replica = self.roster.get(decision.replica)
            if replica is None or replica.member.state == "ejected":  # meanwhile
                self._move(flight, "ejected", ConnectFailed("no connection to the replica"))
                continue
            response = await self._call(flight, request, replica)
            if response is not None:
                return response

    def _tell(self, flight: Flight, request: UpstreamRequest, decision: Decision) -> None:
        """Tell everybody where it goes."""
        flight.told = decision
        replica = self.roster.get(decision.replica)
        queued = flight.dispatched - flight.arrived
        self.observer.request_placed(
            self.config.name, request.tier, flight.request.priority, queued, decision
        )
        request.placed(Placed(None if replica is None else replica.shown_name, queued))

    async def _call(
        self, flight: Flight, request: UpstreamRequest, replica: Replica
    ) -> UpstreamResponse | None:
        """The replica's answer, begun; None where the request has another turn instead."""
        try:
            flight.begin_call()
            try:
                response = await replica.backend.send(request)
                streams = request.stream and response.status == 200
                first = await until_token(response) if streams else None
            finally:
                flight.end_call()
        except asyncio.CancelledError:
            match flight.interruption():
                case "ejected":
                    self._move(flight, "ejected", ConnectionLost("the replica fell silent"))
                case "yielded":
                    pass
                case None:
                    raise
            return None
        except (ConnectFailed, UpstreamTimeout) as error:
            self.roster.report(replica, Event.UNREACHABLE, self.clock())
            self._move(flight, "unreachable", error)
            return None
        except ConnectionLost as error:
            self._blame(replica.id, self.clock())
            self._move(flight, "lost", error)
            return None
        if response.status >= 500 and self._move_from_fault(flight, response):
            return None
        return self._answering(flight, replica, response, first)

    def _answering(
        self, flight: Flight, replica: Replica, response: UpstreamResponse, first: bytes | None
    ) -> PooledResponse:
        now = self.clock()
        flight.answered = True
        flight.heard = replica.heard = now
        if response.status < 500:
            for suspect in flight.suspects:
                self._blame(suspect, now)
            if replica.member.failures:
                self.roster.report(replica, Event.REQUEST_OK, now)
        if first is not None:
            self.scheduler.first_token(flight.id, now)
        self.scheduler.shown(flight.id)
        self.act(now)
        return PooledResponse(response, first, flight, self)

    def _move_from_fault(self, flight: Flight, response: UpstreamResponse) -> bool:
        """Go elsewhere from a replica that answers with a 5xx; False where that can't be, and its
        answer stands.

        Raises:
            Overloaded: every replica that was asked refused it.
        """
        refused = response.status == 503
        if not refused:
            flight.suspects += (flight.replica,)
        wait = _seconds(response.headers.get("retry-after"))
        try:
            error = Overloaded("every replica has a full queue", max(1, math.ceil(wait)))
            self._move(flight, "refused" if refused else "failed", error)
        except (Overloaded, PoolFailed):
            if refused:
                response.close()
                raise
            return False
        response.close()
        return True

    def _move(self, flight: Flight, reason: MoveReason, error: BackendError) -> None:
        """Send a request to another replica.

        Raises:
            BackendError: the given one, or `PoolFailed`, where it can't be sent.
        """
        self.observer.request_moved(self.config.name, reason)
        flight.failed_at += (flight.replica,)
        if len(flight.failed_at) > MAX_MOVES:
            if isinstance(error, Overloaded):
                raise error
            raise PoolFailed("several replicas failed the request") from error
        now = self.clock()
        moved = self.scheduler.move(flight.id, flight.failed_at, now)
        if moved is None:
            raise error
        flight.assign(moved, now)

    def _blame(self, replica_id: str, now: float) -> None:
        replica = self.roster.get(replica_id)
        if replica is not None:
            self.roster.report(replica, Event.REQUEST_FAILED, now)

    def _changed(self, replica: Replica, before: Member) -> None:
        """See `Roster`: a hung replica's requests that have no answer yet go elsewhere."""
        after = replica.member
        self.observer.replica_changed(
            self.config.name, replica.id, before.state, after.state, after.cause
        )
        if after.state == "ejected" and after.cause is not Event.REQUEST_FAILED:
            for flight in self._flights.values():
                if flight.replica == replica.id:
                    flight.interrupt("ejected")

    def _assume_first_token(self, flight: Flight, now: float) -> None:
        """Of an answer that comes whole nobody sees when its prompt is computed: after as long as
        it should take."""
        decision = flight.decision
        if decision is None:
            return
        rate = self.scheduler.prefill_rate(decision.replica)
        if rate is None or now - flight.dispatched > decision.uncached_tokens / rate:
            self.scheduler.assume_first_token(flight.id)
            del self._unseen[flight.id]

    def _forget(self, flight: Flight) -> None:
        self._flights.pop(flight.id, None)
        self._waiting.pop(flight.id, None)
        self._unseen.pop(flight.id, None)

    def _learn(self, flight: Flight, usage: ReportedUsage) -> None:
        """What the engine says is better than what was believed."""
        self._reader.learn(flight.prompt_bytes, usage.prompt_tokens)
        self._lengths.learn(usage.completion_tokens)
        self._tells_cached = self._tells_cached or usage.cached_tokens is not None
        # Engines leave the number out where it is 0, and where they don't tell it at all.
        if self._tells_cached and usage.prompt_tokens:
            share = (usage.cached_tokens or 0) / usage.prompt_tokens
            self.scheduler.found_cached(flight.id, int(share * flight.prompt_bytes) // BLOCK_BYTES)
        self.scheduler.generated(flight.id, usage.completion_tokens)
        if self.caches is not None:
            size, tokens = flight.prompt_bytes, usage.prompt_tokens
            hashes = flight.request.prompt.hashes
            prompt = FinishedPrompt(flight.id, flight.replica, hashes, size, tokens)
            self.caches.finished(prompt, self.clock())

    def _refused(
        self, flight: Flight, request: UpstreamRequest, reason: str, error: Overloaded
    ) -> Overloaded:
        """Tell everybody that it is refused; the error is what its caller hears."""
        request.placed(Placed(None, self.clock() - flight.arrived))
        self.observer.request_shed(self.config.name, request.tier, flight.request.priority, reason)
        return error

    def _nobody_ready(self, now: float) -> Overloaded:
        wait = max(1, math.ceil(self.roster.back_in(now)))
        return Overloaded("no replica of the pool takes requests now", wait)

    def _limits(self, replica: Replica) -> ReplicaLimits:
        return limits_of(replica, self.config, self._reader.block_tokens)

    def _shown_name(self, replica_id: str) -> str | None:
        match self.config.replica_header:
            case "name":
                return replica_id
            case "hash":
                return blake2b(replica_id.encode(), digest_size=4).hexdigest()
            case _:
                return None

    def _connect_by_http(self, url: str) -> tuple[Backend, Inspector]:
        config = VLLMConfig(url, self.config.connect_seconds)
        return VLLMBackend(config), Inspector(config)


def _seconds(text: str | None) -> float:
    """A `Retry-After` in seconds; 0 where it is none."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0
