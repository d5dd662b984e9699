"""What KV events are worth: `python -m tests.router.pool.kv_events_gain TRACE [REQUESTS]`.

A trace (Mooncake's format) through two gateways and eight simulated engines, whose block pools say
what they store and evict; with and without that, and with and without hints between the gateways.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import cast

from sluice.backends.engine import Engine, Output
from sluice.backends.engine.block_pool import BlockPool
from sluice.backends.engine.kv_cache import KVCache
from sluice.backends.engine.request import Progress
from sluice.router.fleet.simulation import FleetConfig, Simulation
from sluice.router.fleet.trace import TraceRequest, read_trace
from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.blocks import BLOCK_BYTES
from sluice.router.pool.engine_caches import SETTLE_SECONDS, EngineCaches, FinishedPrompt
from sluice.router.pool.kv_events import KvEvent, Removed, Stored

#: Until an event has reached a gateway, and was looked at.
DELAY = 0.06

MASK = (1 << 62) - 1


class PublishingPool(BlockPool):
    """Says what it forgets."""

    told: list[KvEvent]

    def _forget(self, block: int) -> None:
        self.told.append(Removed((hash(self._hashes[block]) & MASK,), 0))
        super()._forget(block)


class PublishingCache(KVCache):
    """Says what it stores, too."""

    def __init__(self, config: FleetConfig) -> None:
        super().__init__(config.blocks, config.block_tokens, True)
        self.pool: PublishingPool = PublishingPool(config.blocks)
        self.told: list[KvEvent] = []
        self.pool.told = self.told

    def _extend(self, progress: Progress, total: int) -> None:
        before = progress.hashed
        super()._extend(progress, total)
        if progress.hashed > before:
            names = [hash(progress.hash(index)) & MASK for index in range(progress.hashed)]
            parent = names[before - 1] if before else None
            session = progress.request.id
            new = tuple(names[before:])
            self.told.append(Stored(new, parent, self._block_size, session, 0))


class ToldSimulation(Simulation):
    """The gateways hear the engines' events, each other's hints, or neither."""

    def __init__(
        self, config: FleetConfig, trace: Sequence[TraceRequest], hints: bool, events: bool
    ) -> None:
        super().__init__(config, trace)
        self._hinted = hints
        self._caches = [EngineCaches(gateway) for gateway in self._gateways] if events else []
        self._published = [PublishingCache(config) for _ in self._engines]
        for number, (engine, cache) in enumerate(zip(self._engines, self._published, strict=True)):
            vllm = cast("Engine", engine)
            vllm._cache = vllm._scheduler._cache = cache
            for caches in self._caches:
                caches.begin(str(number))

    def _send(self, gateway: int, request: PoolRequest, replica: int) -> None:
        self._owner[request.id] = gateway
        super()._send(gateway, request, replica)

    def _step(self, replica: int, due: float) -> None:
        super()._step(replica, due)
        told = self._published[replica].told
        if told and self._caches:
            self._at(self._now + DELAY, partial(self._hear, replica, tuple(told)))
        told.clear()

    def _hear(self, replica: int, told: Sequence[KvEvent]) -> None:
        events = [self._named(event) for event in told]
        for caches in self._caches:
            caches.apply(str(replica), events)

    def _named(self, event: KvEvent) -> KvEvent:
        if not isinstance(event, Stored) or event.session is None:
            return event
        prefix = self._caches[self._owner[event.session]]._prefix
        return replace(event, session=prefix + event.session)

    def _output(self, replica: int, output: Output) -> None:
        super()._output(replica, output)
        request, tokens = self._trace[int(output.id)], self._config.block_tokens
        hashes = request.hashes[: request.input_tokens // tokens]
        if output.finish_reason is None or not self._caches or not hashes:
            return
        caches, count = self._caches[self._owner[output.id]], len(hashes)
        prompt = FinishedPrompt(
            output.id, str(replica), hashes, count * BLOCK_BYTES, count * tokens
        )
        caches.finished(prompt, self._now)
        due = self._now + SETTLE_SECONDS
        self._at(due, lambda: caches.settle(due))

    def _share(self, gateway: int) -> None:
        if self._hinted:
            super()._share(gateway)
        else:
            self._gateways[gateway].take_hints()


def main(path: Path, limit: int) -> None:
    """Print a line for each of the four."""
    trace = read_trace(path, limit=limit)
    config = FleetConfig(
        engine="vllm", gateways=2, decode_seconds=0.005, max_num_batched_tokens=8192
    )
    for hints in (True, False):
        for events in (False, True):
            run = ToldSimulation(config, trace, hints, events).run()
            ttfts = [outcome.ttft for outcome in run.outcomes if outcome.ttft is not None]
            cached = sum(outcome.cached_tokens for outcome in run.outcomes)
            hit = cached / sum(request.input_tokens for request in trace)
            print(f"{hints=!s:5} {events=!s:5} hit rate {hit:.3f} mean TTFT {mean(ttfts):.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4_000)
