"""Watches one run of an engine, and keeps what the pool is told of it true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.backends.replicas import EngineLimits, EngineLoad
from sluice.backends.worker.client import EngineClient, EngineDead, EngineSilent
from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.lease import Lease
from sluice.backends.worker.metrics import Reading
from sluice.backends.worker.model import ServedModel
from sluice.backends.worker.vitals import Patience, Verdict, Vitals

_SILENT = "the engine does not answer"


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """Times in seconds.

    Attributes:
        start: until an engine must have answered a probe.
        reading_every: between two looks at its metrics.
        probe_every: between two probes of one token.
        probe_limit: on one probe.
        patience: see there.
    """

    start: float = 1800.0
    reading_every: float = 0.5
    probe_every: float = 5.0
    probe_limit: float = 30.0
    patience: Patience = field(default_factory=Patience)


class Watch:
    """One run of an engine, from its start to its end.

    Attributes:
        ready_at: when it answered its first probe, by the clock; None: it has not.
        idle_readings: readings in a row by which it had nothing to do.
    """

    def __init__(
        self,
        client: EngineClient,
        lease: Lease,
        model: ServedModel,
        gpu: GpuMemory | None,
        config: WatchConfig,
        clock: Callable[[], float],
    ) -> None:
        """Args:
        client: the engine.
        lease: is kept true; who sets it to draining is left alone.
        model: what it serves.
        gpu: the GPUs, if there are any.
        config: times.
        clock: seconds that never go back.
        """
        self._client = client
        self._lease = lease
        self._model = model
        self._gpu = gpu
        self._config = config
        self._clock = clock
        self.ready_at: float | None = None
        self.idle_readings = 0

    async def run(self) -> str:
        """Until the engine must be ended; says why."""
        first = await self._first_reading()
        if first is None:
            return f"did not answer within {self._config.start:g} s"
        now = self.ready_at = self._clock()
        vitals = Vitals(self._config.patience, now)
        if self._lease.announcement.state != "draining":
            self._lease.update(
                state="ready", problem=None, limits=self._limits(first), load=self._load(first)
            )
        probing = asyncio.create_task(self._probe(vitals), name="engine-probe")
        try:
            while not probing.done():
                await asyncio.wait({probing}, timeout=self._config.reading_every)
                verdict = await self._look(vitals)
                if verdict == "hung":
                    return f"made no token in {self._config.patience.hung:g} s"
                self._tell(verdict)
            return probing.result()
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def _first_reading(self) -> Reading | None:
        """The first one after a probe was answered; None: the time is over."""
        deadline = self._clock() + self._config.start
        while self._clock() < deadline:
            try:
                await self._client.probe(self._config.probe_limit)
                return await self._client.reading(self._config.probe_limit)
            except (EngineSilent, EngineDead):  # not yet; a dead one's process ends
                await asyncio.sleep(self._config.reading_every)
        return None

    async def _look(self, vitals: Vitals) -> Verdict:
        try:
            reading = await self._client.reading(self._config.patience.silent)
        except EngineSilent:
            self.idle_readings = 0
        else:
            vitals.answered(reading.tokens, self._clock())
            self.idle_readings = self.idle_readings + 1 if reading.idle else 0
            self._lease.update(load=self._load(reading))
        return vitals.verdict(self._clock())

    def _tell(self, verdict: Verdict) -> None:
        told = self._lease.announcement.state
        if verdict == "silent" and told == "ready":
            self._lease.update(state="joining", problem=_SILENT)
        elif verdict == "well" and told == "joining":
            self._lease.update(state="ready", problem=None)

    async def _probe(self, vitals: Vitals) -> str:
        """Probe until the engine says that it is dead."""
        while True:
            await asyncio.sleep(self._config.probe_every)
            try:
                await self._client.probe(self._config.probe_limit)
            except EngineDead as error:
                return str(error)
            except EngineSilent:
                continue  # what follows from that, the vitals say
            vitals.probed(self._clock())

    def _limits(self, reading: Reading) -> EngineLimits:
        engine = self._model.engine
        return EngineLimits(
            kv_blocks=reading.kv_blocks,
            block_size=reading.block_size,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_queued_requests=engine.max_queued_requests,
            max_queued_tokens=engine.max_queued_tokens,
            context_length=self._model.context_length,
            priority=engine.priority_scheduling,
        )

    def _load(self, reading: Reading) -> EngineLoad:
        memory = None if self._gpu is None else self._gpu.read()
        used, total = memory or (None, None)
        return EngineLoad(
            running=reading.running,
            waiting=reading.waiting,
            kv_usage=reading.kv_usage,
            gpu_memory_used=used,
            gpu_memory_total=total,
        )
