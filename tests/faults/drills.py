"""Many drills at once: each waits for an upstream most of its time, and none waits for another."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.faults.asking import Seen, ask
from tests.faults.catalogue import Early, Late
from tests.faults.models import KINDS
from tests.harness.gateway import Gateway
from tests.harness.upstream import Call, Upstream

AT_ONCE = 12
RESULT_SECONDS = 120.0

F = TypeVar("F", Early, Late)


@dataclass(frozen=True)
class Drill(Generic[F]):
    """A fault, met by one kind of client over one kind of upstream."""

    fault: F
    endpoint: str
    stream: bool
    upstream: str

    @property
    def id(self) -> str:
        mode = "stream" if self.stream else "whole"
        return f"{self.fault.name}-{self.endpoint}-{mode}-{self.upstream}"

    @property
    def marker(self) -> str:
        moment = "early" if isinstance(self.fault, Early) else "late"
        return f"drill-{moment}-{self.id}-end"


def drills(faults: Iterable[F], streams: Iterable[bool]) -> list[Drill[F]]:
    """Every fault with every endpoint, mode and kind of upstream that can meet it."""
    modes = [(endpoint, stream) for stream in streams for endpoint in _GENERATING]
    if any(not stream for _, stream in modes):
        modes.append(("embeddings", False))
    return [
        Drill(fault, endpoint, stream, kind)
        for fault in faults
        for endpoint, stream in modes
        for kind in KINDS
        if not (isinstance(fault, Early) and fault.streams is not None and fault.streams != stream)
        if not (endpoint == "embeddings" and kind == "anthropic")
    ]


_GENERATING = ("chat", "messages", "responses")


class Run(Generic[F]):
    """Drills under way."""

    def __init__(self, gateway: Gateway, upstream: Upstream, chosen: list[Drill[F]]) -> None:
        self.gateway = gateway
        self._upstream = upstream
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._seen: dict[Drill[F], Future[Seen]] = {}
        for drill in chosen:
            if drill.fault.script is not None:
                upstream.on(drill.marker, drill.fault.script)
            self._seen[drill] = self._pool.submit(self._ask, drill)

    def seen(self, drill: Drill[F]) -> Seen:
        """What the caller got."""
        return self._seen[drill].result(RESULT_SECONDS)

    def calls(self, drill: Drill[F]) -> list[Call]:
        """What the upstream got."""
        return self._upstream.calls_with(drill.marker)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, drill: Drill[F]) -> Seen:
        refused = isinstance(drill.fault, Early) and drill.fault.script is None
        model = f"{drill.upstream}-refused" if refused else drill.upstream
        return ask(self.gateway, drill.endpoint, model, drill.marker, drill.stream)
