"""What is asked of an engine, and how far it is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Refusal(StrEnum):
    """Why an engine takes no request; the first two are vLLM's reasons, answered with 503."""

    MAX_NUM_QUEUED_REQS = "max_num_queued_reqs"
    MAX_NUM_QUEUED_TOKENS = "max_num_queued_tokens"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation.

    Attributes:
        id: unique among the engine's unfinished requests.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: length of the answer, at least 1.
        hashes: one for each full block of the prompt, and beyond the prompt as far as the answer is
            known; each stands for its block and all before it. Blocks without one are found again
            by their own request only.
        priority: lower is earlier, under the policy `priority`.
        salt: whose cache this is; requests find only blocks of the same salt.
        arrival: when it came, in seconds; orders equals in priority.
        finish_reason: why the answer ends where it does.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[Hashable] = ()
    priority: int = 0
    salt: str | None = None
    arrival: float = 0.0
    finish_reason: Literal["stop", "length"] = "stop"


@dataclass(slots=True, eq=False)
class Progress:
    """How far a request is.

    Attributes:
        request: what is asked for.
        number: how many came before it.
        computed: tokens whose keys and values are in its blocks.
        generated: tokens of the answer.
        blocks: its blocks in order.
        hashed: how many of those are full and in the cache's index.
        cached_tokens: what it found in the cache when it first ran.
        preemptions: how often it lost its blocks.
        running: whether it has a place in the batch.
        aborted: whether its client left while a step was under way.
    """

    request: EngineRequest
    number: int
    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    hashed: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    running: bool = False
    aborted: bool = False

    @property
    def length(self) -> int:
        """Tokens that are known: the prompt's and the answer's so far."""
        return self.request.prompt_tokens + self.generated

    @property
    def rank(self) -> tuple[int, float, int]:
        """Its place under the policy `priority`."""
        return (self.request.priority, self.request.arrival, self.number)

    def hash(self, index: int) -> Hashable:
        """What the block at `index`, being full, is found by."""
        request = self.request
        if index >= len(request.hashes):
            return ("answer", self.number, index)
        known = request.hashes[index]
        return known if request.salt is None else (request.salt, known)
