"""The life of a replica.

check the weights ─> start the engine ─> joined, ready ─> asked to stop ─> drained, left
                          ^                   │
                          └── with backoff ───┘ crashed or hung: out of the pool at once
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import structlog

from sluice.backends.worker.client import EngineClient
from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.lease import Lease
from sluice.backends.worker.manifest import CheckCancelled, VerifiedFiles, WeightsRefused, verify
from sluice.backends.worker.model import ServedModel
from sluice.backends.worker.process import EngineNotStarted, EngineProcess
from sluice.backends.worker.restarts import RestartPolicy, Restarts
from sluice.backends.worker.watch import Watch, WatchConfig

_log = structlog.get_logger("sluice.worker")

_TURN_SECONDS = 0.02


class ExitCode(IntEnum):
    """How a worker ends, as its process's exit status; 1 and 2 are the command line's."""

    STOPPED = 0
    WEIGHTS_REFUSED = 3
    MODEL_UNUSABLE = 4
    ENGINE_FAILED = 5
    DRAIN_CUT = 6


class StopRequest:
    """What signals ask for: the first to drain, the second to end at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def asked(self) -> bool:
        """To stop."""
        return self._asked.is_set()

    @property
    def hurried(self) -> bool:
        """To stop at once."""
        return self._hurried.is_set()

    def signal(self) -> None:
        """Asked, once more."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    async def wait(self) -> None:
        """Until asked to stop."""
        await self._asked.wait()

    async def pause(self, seconds: float) -> None:
        """Until asked to stop, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker runs its engine; times in seconds.

    Attributes:
        command: the engine's command line.
        environment: the engine's, the whole of it.
        weights: their directory.
        verified: where checksums of unchanged files are kept; None: nowhere.
        watch: how the engine is watched.
        restarts: how it is started again.
        linger: for gateways to hear that it drains, before its emptiness is believed.
        drain: for requests to finish.
        grace: for the engine to end by itself.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    weights: Path
    verified: Path | None = None
    watch: WatchConfig = field(default_factory=WatchConfig)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    linger: float = 1.0
    drain: float = 120.0
    grace: float = 10.0


class Worker:
    """Runs one engine, and keeps it in the pool while it is well."""

    def __init__(
        self,
        model: ServedModel,
        config: WorkerConfig,
        lease: Lease,
        client: EngineClient,
        stop: StopRequest,
        gpu: GpuMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        model: what is served.
        config: see there.
        lease: the place in the pool, not yet started.
        client: the engine's address.
        stop: what signals ask for.
        gpu: the GPUs, if there are any.
        clock: seconds that never go back.
        """
        self._model = model
        self._config = config
        self._lease = lease
        self._client = client
        self._stop = stop
        self._gpu = gpu
        self._clock = clock
        self._restarts = Restarts(config.restarts)

    async def run(self) -> ExitCode:
        """The whole life; says how it ended. The engine is gone by then."""
        self._lease.start()
        code = ExitCode.ENGINE_FAILED
        try:
            code = await self._live()
        finally:
            # Who failed stays to be read for a lease's time, with the reason.
            await self._lease.stop(leave=code in (ExitCode.STOPPED, ExitCode.DRAIN_CUT))
        return code

    async def _live(self) -> ExitCode:
        try:
            await self._check_weights()
        except CheckCancelled:
            return ExitCode.STOPPED
        except WeightsRefused as error:
            _log.error("weights refused", weights=str(self._config.weights), problem=str(error))
            self._lease.update(problem=f"weights refused: {error}")
            return ExitCode.WEIGHTS_REFUSED
        while not self._stop.asked:
            try:
                code = await self._run_engine()
            except EngineNotStarted as error:
                _log.error("engine not started", problem=str(error))
                self._lease.update(problem=str(error))
                return ExitCode.ENGINE_FAILED
            if code is not None:
                return code
        return ExitCode.STOPPED

    async def _check_weights(self) -> None:
        config = self._config
        self._lease.update(problem="its weights are being checked")
        begun = self._clock()
        known = await asyncio.to_thread(VerifiedFiles, config.verified)
        await asyncio.to_thread(
            verify, config.weights, self._model.manifest, known, lambda: self._stop.asked
        )
        seconds = round(self._clock() - begun, 3)
        _log.info("weights verified", files=len(self._model.manifest), seconds=seconds)

    async def _run_engine(self) -> ExitCode | None:
        """One run of the engine, and the wait after it; None: it is to run again.

        Raises:
            EngineNotStarted: it can't be run at all.
        """
        config = self._config
        engine = await EngineProcess.start(config.command, config.environment)
        _log.info("engine started", pid=engine.pid)
        self._lease.update(state="joining", problem="its engine starts")
        watch = Watch(self._client, self._lease, self._model, self._gpu, config.watch, self._clock)
        watching = asyncio.create_task(watch.run(), name="engine-watch")
        stopping = asyncio.create_task(self._stop.wait(), name="stop-request")
        grace = 0.0
        try:
            await asyncio.wait(
                {engine.ended, watching, stopping}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._stop.asked:
                code = await self._drain(engine, watch, watching)
                grace = 0.0 if self._stop.hurried else config.grace
                return code
            problem = engine.ended.result() if engine.ended.done() else watching.result()
        finally:
            for task in (watching, stopping):
                task.cancel()
            await asyncio.gather(watching, stopping, return_exceptions=True)
            await engine.stop(grace)
        return await self._after_failure(f"its engine {problem}", watch.ready_at)

    async def _after_failure(self, problem: str, ready_at: float | None) -> ExitCode | None:
        ready_seconds = 0.0 if ready_at is None else self._clock() - ready_at
        delay = self._restarts.failed(ready_seconds)
        self._lease.update(state="joining", problem=problem, restarts=self._restarts.total)
        if delay is None:
            _log.error("engine fails again and again", problem=problem)
            return ExitCode.ENGINE_FAILED
        _log.warning("engine restarts", problem=problem, after_seconds=delay)
        await self._stop.pause(delay)
        return None

    async def _drain(
        self, engine: EngineProcess, watch: Watch, watching: asyncio.Task[str]
    ) -> ExitCode:
        """No new work, finish what there is; the engine is still to be stopped."""
        self._lease.update(state="draining", problem=None)
        if watch.ready_at is None:
            return ExitCode.STOPPED
        _log.info("draining", seconds=self._config.drain)
        now = self._clock()
        believed_from, deadline = now + self._config.linger, now + self._config.drain
        while not self._stop.hurried and not engine.ended.done() and not watching.done():
            now = self._clock()
            if now < believed_from:
                watch.idle_readings = 0
            elif watch.idle_readings >= 2:
                _log.info("drained")
                return ExitCode.STOPPED
            if now > deadline:
                break
            await asyncio.sleep(_TURN_SECONDS)
        _log.warning("drain cut short", load=self._lease.announcement.load)
        return ExitCode.DRAIN_CUT
