"""What stands for a replica in the simulation.

`Engine` is the model of vLLM's step loop in `sluice.backends.engine`. `SerialEngine` is a much
smaller one: prompts are computed one after the other, and decoding costs nobody else anything. The
published comparison of policies was made with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from sluice.backends.engine import EngineRequest, Output, Refusal
from sluice.router.pool.index import PrefixIndex


class Stepped(Protocol):
    """What a step had as its outcome."""

    @property
    def outputs(self) -> Sequence[Output]:
        """What came out."""
        ...


class Replica(Protocol):
    """A simulated engine in virtual time. `Engine` is one."""

    @property
    def due(self) -> float | None:
        """When `step` is to be called next; read again after each call."""
        ...

    def submit(self, request: EngineRequest, now: float) -> Refusal | None:
        """Take in a request, or say why not."""
        ...

    def abort(self, request_id: str, now: float) -> bool:
        """Forget a request; says whether it was unfinished."""
        ...

    def step(self, now: float) -> Stepped:
        """What has come out at `due`."""
        ...


class _Outputs(NamedTuple):
    outputs: list[Output]


@dataclass(slots=True)
class _Prefill:
    """The prompt that is being computed."""

    request: EngineRequest
    start: float
    end: float
    cached_tokens: int


_SELF = "self"


class SerialEngine:
    """Prompts first come, first served; decoding for nothing; a cache of blocks with LRU."""

    def __init__(
        self, blocks: int, block_tokens: int, prefill_rate: float, decode_seconds: float
    ) -> None:
        """Args:
        blocks: in its cache.
        block_tokens: tokens in a block.
        prefill_rate: tokens a second.
        decode_seconds: for each token of an answer after the first.
        """
        self._cache = PrefixIndex()
        self._cache.add(_SELF, blocks)
        self._block_tokens = block_tokens
        self._prefill_rate = prefill_rate
        self._decode_seconds = decode_seconds
        self._queue: deque[EngineRequest] = deque()
        self._prefill: _Prefill | None = None
        self._ends: list[tuple[float, str]] = []
        self._decoding: dict[str, tuple[EngineRequest, int]] = {}

    @property
    def due(self) -> float | None:
        """When the next prompt or answer is complete; None while there is nothing to do."""
        times = []
        if self._prefill is not None:
            times.append(self._prefill.end)
        if self._ends:
            times.append(self._ends[0][0])
        return min(times, default=None)

    def submit(self, request: EngineRequest, now: float) -> Refusal | None:
        """Take in a request. None is ever refused."""
        self._queue.append(request)
        if self._prefill is None:
            self._begin(now)
        return None

    def abort(self, request_id: str, now: float) -> bool:
        """Forget a request."""
        if self._decoding.pop(request_id, None) is not None:
            return True
        if self._prefill is not None and self._prefill.request.id == request_id:
            self._begin(now)
            return True
        for request in self._queue:
            if request.id == request_id:
                self._queue.remove(request)
                return True
        return False

    def step(self, now: float) -> Stepped:
        """First tokens and ends up to now."""
        outputs = []
        while (due := self.due) is not None and due <= now:
            prefill = self._prefill
            if prefill is not None and prefill.end == due:
                outputs.append(self._first_token(prefill))
                self._begin(due)
                continue
            _, request_id = heappop(self._ends)
            ended = self._decoding.pop(request_id, None)
            if ended is not None:
                request, cached = ended
                outputs.append(Output(request_id, request.output_tokens - 1, False, "stop", cached))
        return _Outputs(outputs)

    def _begin(self, now: float) -> None:
        self._prefill = None
        if not self._queue:
            return
        request = self._queue.popleft()
        hashes: Sequence[int] = request.hashes  # type: ignore[assignment]  # a trace's ids
        cached = min(
            self._cache.depth(_SELF, hashes) * self._block_tokens, request.prompt_tokens - 1
        )
        self._cache.insert(_SELF, hashes)
        computed = request.prompt_tokens - cached
        self._prefill = _Prefill(request, now, now + computed / self._prefill_rate, cached)

    def _first_token(self, prefill: _Prefill) -> Output:
        request = prefill.request
        if request.output_tokens <= 1:
            return Output(request.id, 1, True, "stop", prefill.cached_tokens)
        self._decoding[request.id] = (request, prefill.cached_tokens)
        end = prefill.end + request.output_tokens * self._decode_seconds
        heappush(self._ends, (end, request.id))
        return Output(request.id, 1, True, None, prefill.cached_tokens)
