"""The loop: arrivals, replicas and hints on one clock; the pool's own code decides.

Each gateway is a `PoolScheduler` of its own. They share nothing but the hints they send each
other, which arrive after a delay; a balancer that knows nothing spreads the requests over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Literal

from sluice.backends.engine import Engine, EngineConfig, EngineRequest, Output, Pace, Policy
from sluice.router.fleet.replicas import Replica, SerialEngine
from sluice.router.fleet.trace import TeamShare, TraceRequest
from sluice.router.pool.bounds import BoundPolicy, ReplicaLimits
from sluice.router.pool.fair_queue import QueuePolicy, Shed
from sluice.router.pool.load import Hint
from sluice.router.pool.placement import POLICIES, Placement, PolicyName, PrefixLoad, Prompt
from sluice.router.pool.scheduler import Dispatch, PoolRequest, PoolScheduler, Yield

EngineName = Literal["queue", "vllm"]

_BANDS = {"high": 0, "normal": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """A fleet, and the gateways before it.

    Attributes:
        replicas: how many.
        blocks: KV cache blocks of each.
        block_tokens: tokens in a block.
        prefill_rate: prompt tokens a second that a replica computes.
        decode_seconds: for an output token, at least.
        engine: `queue`, serial prefill and decoding for nothing; `vllm`, the step loop.
        max_num_seqs: requests in a batch.
        max_num_batched_tokens: of a step, for `vllm`.
        policy: the placement policy.
        queue_weight: of `prefix_load`; None: its default.
        gateways: processes that share nothing but hints.
        hint_seconds: how long a hint takes.
        index_factor: believed size of the caches over their true size.
        ttft_slo: seconds to the first token of interactive requests; None: no bounds and no
            refusals.
        itl_slo: seconds between tokens that goodput asks for; None: any.
        queue: the fair queue's behaviour.
        teams: weights of teams; others have 1.
        seed: of everything that is drawn.
    """

    replicas: int = 8
    blocks: int = 1000
    block_tokens: int = 512
    prefill_rate: float = 8000.0
    decode_seconds: float = 0.02
    engine: EngineName = "queue"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    policy: PolicyName = "prefix_load"
    queue_weight: float | None = None
    gateways: int = 1
    hint_seconds: float = 0.05
    index_factor: float = 1.0
    ttft_slo: float | None = None
    itl_slo: float | None = None
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    teams: tuple[TeamShare, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What became of one request; times are seconds of the simulation.

    Attributes:
        request: as the trace has it.
        dispatched: when it last left the gateway's queue.
        first_token: when it came.
        ended: when the answer was complete.
        replica: which served it.
        cached_tokens: of its prompt that the replica had.
        shed: the refusal, if it was refused.
        yields: how often it made room.
    """

    request: TraceRequest
    dispatched: float | None = None
    first_token: float | None = None
    ended: float | None = None
    replica: int | None = None
    cached_tokens: int = 0
    shed: Shed | None = None
    shed_at: float | None = None
    yields: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.request.time

    @property
    def itl(self) -> float | None:
        """Mean seconds between the answer's tokens."""
        if self.ended is None or self.first_token is None or self.request.output_tokens < 2:
            return None
        return (self.ended - self.first_token) / (self.request.output_tokens - 1)


@dataclass(slots=True)
class Run:
    """A finished simulation.

    Attributes:
        config: what was simulated.
        outcomes: in the trace's order.
        computed: prompt tokens that each replica computed.
        end: when the last answer was complete.
    """

    config: FleetConfig
    outcomes: list[Outcome]
    computed: list[int]
    end: float


@dataclass(order=True, slots=True)
class _Event:
    time: float
    order: int
    act: Callable[[], None] = field(compare=False)


class Simulation:
    """One run; made once, run once."""

    def __init__(self, config: FleetConfig, trace: Sequence[TraceRequest]) -> None:
        """Args:
        config: the fleet.
        trace: in the order of arrival.
        """
        self._config = config
        self._trace = trace
        self._outcomes = [Outcome(request) for request in trace]
        self._engines = [_engine(config) for _ in range(config.replicas)]
        self._computed = [0] * config.replicas
        self._gateways = [_gateway(config, number) for number in range(config.gateways)]
        self._door = Random(config.seed)
        self._owner: dict[str, int] = {}
        self._weights = {team.name: team.weight for team in config.teams}
        self._events: list[_Event] = []
        self._order = 0
        self._wakes: list[float | None] = [None] * config.gateways
        self._scheduled: list[float | None] = [None] * config.replicas
        self._now = 0.0

    def run(self) -> Run:
        """Until the last answer is complete."""
        arrivals = 0
        events, trace = self._events, self._trace
        while events or arrivals < len(trace):
            if arrivals < len(trace) and (not events or trace[arrivals].time < events[0].time):
                self._now = trace[arrivals].time
                self._arrive(arrivals)
                arrivals += 1
            else:
                event = heappop(events)
                self._now = event.time
                event.act()
        return Run(self._config, self._outcomes, self._computed, self._now)

    def _arrive(self, number: int) -> None:
        config, request = self._config, self._trace[number]
        gateway = self._door.randrange(config.gateways)
        key = str(number)
        interactive = request.tier == "interactive"
        shed = self._gateways[gateway].submit(
            PoolRequest(
                key,
                Prompt(request.input_tokens, request.hashes, config.block_tokens),
                request.output_tokens,
                request.team,
                self._weights.get(request.team, 1.0),
                request.priority,
                request.tier,
                config.ttft_slo if interactive else None,
            ),
            self._now,
        )
        if shed is not None:
            self._refuse(shed)
            return
        self._owner[key] = gateway
        self._decide(gateway)

    def _decide(self, gateway: int) -> None:
        for action in self._gateways[gateway].decide(self._now):
            match action:
                case Dispatch(request, decision):
                    self._send(gateway, request, int(decision.replica))
                case Yield(request=key, replica=replica):
                    self._engines[int(replica)].abort(key, self._now)
                    self._outcomes[int(key)].yields += 1
                    self._outcomes[int(key)].first_token = None
                    self._watch(int(replica))
                case Shed():
                    self._refuse(action)
        self._share(gateway)
        wake = self._gateways[gateway].wake()
        if wake is not None and wake != self._wakes[gateway]:
            self._wakes[gateway] = wake
            self._at(wake, lambda: self._wake(gateway, wake))

    def _wake(self, gateway: int, time: float) -> None:
        if self._wakes[gateway] == time:
            self._wakes[gateway] = None
            self._decide(gateway)

    def _send(self, gateway: int, request: PoolRequest, replica: int) -> None:
        config = self._config
        full = request.prompt.hashes
        if config.engine == "vllm":
            full = full[: request.prompt.tokens // config.block_tokens]
        tier = 3 if request.tier == "batch" else 0
        refusal = self._engines[replica].submit(
            EngineRequest(
                request.id,
                request.prompt.tokens,
                request.output_tokens,
                full,
                priority=tier + _BANDS[request.priority],
                arrival=self._now,
            ),
            self._now,
        )
        outcome = self._outcomes[int(request.id)]
        if refusal is not None:
            self._gateways[gateway].ended(request.id, self._now)
            self._refuse(Shed(request.id, 1, "full"))
            return
        outcome.dispatched, outcome.replica = self._now, replica
        self._watch(replica)

    def _refuse(self, shed: Shed) -> None:
        outcome = self._outcomes[int(shed.request)]
        outcome.shed, outcome.shed_at = shed, self._now

    def _watch(self, replica: int) -> None:
        """Have the replica's next event on the heap."""
        due = self._engines[replica].due
        scheduled = self._scheduled[replica]
        if due is not None and (scheduled is None or due != scheduled):
            self._scheduled[replica] = due
            self._at(due, lambda: self._step(replica, due))

    def _step(self, replica: int, due: float) -> None:
        if self._scheduled[replica] != due:
            return  # the replica's plans changed since
        self._scheduled[replica] = None
        engine = self._engines[replica]
        if engine.due == due:
            changed: dict[int, None] = {}
            for output in engine.step(due).outputs:
                changed[self._owner[output.id]] = None
                self._output(replica, output)
            for gateway in changed:
                self._decide(gateway)
        self._watch(replica)

    def _output(self, replica: int, output: Output) -> None:
        gateway = self._gateways[self._owner[output.id]]
        outcome = self._outcomes[int(output.id)]
        if output.first:
            outcome.first_token = self._now
            outcome.cached_tokens = output.cached_tokens
            self._computed[replica] += outcome.request.input_tokens - output.cached_tokens
            gateway.first_token(output.id, self._now, output.cached_tokens)
        gateway.generated(output.id, output.tokens)
        if output.finish_reason is not None:
            outcome.ended = self._now
            gateway.ended(output.id, self._now)

    def _share(self, gateway: int) -> None:
        hints = self._gateways[gateway].take_hints()
        if hints and len(self._gateways) > 1:
            arrival = self._now + self._config.hint_seconds
            self._at(arrival, lambda: self._deliver(gateway, hints))

    def _deliver(self, sender: int, hints: Sequence[Hint]) -> None:
        for number, gateway in enumerate(self._gateways):
            if number != sender:
                for hint in hints:
                    gateway.receive(hint, self._now)
                if len(gateway.queue):
                    self._decide(number)

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, _Event(time, self._order, act))


def simulate(config: FleetConfig, trace: Sequence[TraceRequest]) -> Run:
    """Run a trace through a fleet."""
    return Simulation(config, trace).run()


def _engine(config: FleetConfig) -> Replica:
    if config.engine == "queue":
        return SerialEngine(
            config.blocks, config.block_tokens, config.prefill_rate, config.decode_seconds
        )
    return Engine(
        EngineConfig(
            num_blocks=config.blocks,
            block_size=config.block_tokens,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            policy=Policy.PRIORITY,
            pace=Pace(
                floor_seconds=config.decode_seconds,
                prefill_token_seconds=1.0 / config.prefill_rate,
            ),
        )
    )


def _gateway(config: FleetConfig, number: int) -> PoolScheduler:
    bounds = None if config.ttft_slo is None else BoundPolicy(config.ttft_slo)
    gateway = PoolScheduler(
        f"gateway-{number}",
        _placement(config, number),
        bounds,
        config.queue,
        config.hint_seconds,
        silence=float("inf"),  # nobody dies here, and heartbeats would say nothing
    )
    limits = ReplicaLimits(
        kv_blocks=max(1, round(config.blocks * config.index_factor)),
        block_tokens=config.block_tokens,
        max_running=1_000_000 if config.engine == "queue" else config.max_num_seqs,
        prefill_rate=config.prefill_rate,
        step_tokens=config.max_num_batched_tokens,
    )
    for replica in range(config.replicas):
        gateway.join(str(replica), limits)
    return gateway


def _placement(config: FleetConfig, number: int) -> Placement:
    random = Random(config.seed * 1000 + number)
    if config.policy == "prefix_load" and config.queue_weight is not None:
        return PrefixLoad(random, config.queue_weight)
    return POLICIES[config.policy](random)
