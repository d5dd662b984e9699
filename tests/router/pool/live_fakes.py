"""Replicas in this process that do what a test tells them, and a pool over them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sluice.backends.base import (
    Backend,
    BackendError,
    ConnectionLost,
    Dialect,
    Endpoint,
    Placed,
    UpstreamRequest,
)
from sluice.backends.vllm import VLLM_DIALECT, Finding, VLLMConfig, VLLMInspector
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.fair_queue import Priority, Tier
from sluice.router.pool.kv_events import EventKind
from sluice.router.pool.membership import Event, State
from sluice.router.pool.observer import MoveReason
from sluice.router.pool.placement import Decision
from sluice.router.pool.pool import PoolBackend
from sluice.router.pool.snapshot import PoolSnapshot

DONE = b"data: [DONE]\n\n"


def piece(text: str = "word", usage: dict[str, Any] | None = None) -> bytes:
    """A chunk of a stream; usage where some is given."""
    body: dict[str, Any] = {"choices": [{"delta": {"content": text}}]}
    if usage is not None:
        body["usage"] = usage
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@dataclass
class FakeResponse:
    """A response that hands out pieces; an exception among them is raised, `...` waits for ever."""

    status: int
    pieces: list[Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    closed: bool = False

    async def read(self, limit: int) -> bytes:
        whole = b""
        while part := await self.next():
            whole += part
        return whole[:limit]

    async def next(self) -> bytes:
        if not self.pieces:
            return b""
        first = self.pieces.pop(0)
        if first is ...:
            await asyncio.Event().wait()
        if isinstance(first, asyncio.Event):
            await first.wait()
            return await self.next()
        if isinstance(first, Exception):
            raise first
        assert isinstance(first, bytes)
        return first

    def close(self) -> None:
        self.closed = True


class FakeReplica:
    """See `Backend` and `VLLMInspector`: answers by a list of scripts, the last one again and
    again."""

    kind = "vllm"
    dialect: Dialect = VLLM_DIALECT

    def __init__(self) -> None:
        self.requests: list[UpstreamRequest] = []
        self.responses: list[FakeResponse] = []
        self.finding: Finding = "ok"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.pieces: list[Any] = [piece(), DONE]
        self.error: BackendError | None = None
        self.hangs = False

    async def send(self, request: UpstreamRequest) -> FakeResponse:
        self.requests.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        response = FakeResponse(self.status, list(self.pieces), self.headers)
        self.responses.append(response)
        return response

    async def close(self) -> None:
        pass


class FakeInspector(VLLMInspector):
    """Finds what its replica says."""

    def __init__(self, replica: FakeReplica) -> None:
        super().__init__(VLLMConfig("http://fake"))
        self._replica = replica
        self.probes = 0

    async def health(self, seconds: float) -> Finding:
        return self._replica.finding

    async def probe(self, seconds: float, credential: str | None = None) -> Finding:
        self.probes += 1
        return self._replica.finding

    async def metrics(self, seconds: float) -> str | None:
        return None


class Watcher:
    """See `PoolObserver`: remembers."""

    def __init__(self) -> None:
        self.placed: list[Decision] = []
        self.sheds: list[str] = []
        self.moves: list[str] = []
        self.yields = 0
        self.changes: list[tuple[str, State, State]] = []
        self.left: list[str] = []
        self.kv_events: Counter[EventKind] = Counter()
        self.kv_gaps: list[bool] = []

    def request_placed(
        self, pool: str, tier: Tier, priority: Priority, queued: float, decision: Decision
    ) -> None:
        self.placed.append(decision)

    def request_shed(self, pool: str, tier: Tier, priority: Priority, reason: str) -> None:
        self.sheds.append(reason)

    def request_moved(self, pool: str, reason: MoveReason) -> None:
        self.moves.append(reason)

    def request_yielded(self, pool: str) -> None:
        self.yields += 1

    def replica_changed(
        self, pool: str, replica: str, old: State, new: State, cause: Event | None
    ) -> None:
        self.changes.append((replica, old, new))

    def replica_left(self, pool: str, replica: str) -> None:
        self.left.append(replica)

    def pool_seen(self, pool: str, snapshot: PoolSnapshot) -> None:
        pass

    def kv_events_applied(self, pool: str, counts: Mapping[EventKind, int]) -> None:
        self.kv_events.update(counts)

    def kv_events_missed(self, pool: str, healed: bool) -> None:
        self.kv_gaps.append(healed)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Harness:
    """A pool over fake replicas named `a`, `b`, …, all of them ready."""

    def __init__(self, names: str = "ab", **config: Any) -> None:
        self.clock = Clock()
        self.watcher = Watcher()
        self.replicas = {name: FakeReplica() for name in names}
        self.inspectors = {name: FakeInspector(fake) for name, fake in self.replicas.items()}
        given: dict[str, Any] = {"placement": "round_robin", "replica_header": "name", **config}
        self.pool = PoolBackend(
            PoolConfig("p", tuple(f"http://{name}" for name in names), **given),
            self.watcher,
            "gateway-1",
            connect=self._connect,
            clock=self.clock,
            random=Random(1),
        )
        for name in names:
            self.report(name, Event.PROBE_OK)
        self.placed: list[Placed] = []

    def __getitem__(self, name: str) -> FakeReplica:
        return self.replicas[name]

    def report(self, name: str, event: Event) -> None:
        self.pool.roster.report(self.pool.roster[name], event, self.clock.now)

    def states(self) -> dict[str, State]:
        return {replica.id: replica.member.state for replica in self.pool.roster}

    def request(self, prompt: str = "hello", stream: bool = True, **more: Any) -> UpstreamRequest:
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        return UpstreamRequest(
            Endpoint.CHAT,
            "m",
            json.dumps(body).encode(),
            stream,
            "request",
            **{"placed": self.placed.append, "max_tokens": 10, **more},
        )

    async def ask(self, prompt: str = "hello", **more: Any) -> bytes:
        """Ask, and read the answer to its end."""
        response = await self.pool.send(self.request(prompt, **more))
        text = b""
        while part := await response.next():
            text += part
        return text

    def outstanding(self) -> int:
        return sum(load.running for load in self.pool.scheduler.loads)

    def _connect(self, url: str) -> tuple[Backend, VLLMInspector]:
        name = url.removeprefix("http://")
        return self.replicas[name], self.inspectors[name]


async def settle(tasks: Iterable[asyncio.Task[Any]] = ()) -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


LOST = ConnectionLost("the upstream's stream broke off")
