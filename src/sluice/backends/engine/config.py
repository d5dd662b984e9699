"""What an operator sets of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sluice.backends.engine.pace import Pace


class Policy(StrEnum):
    """Whose turn it is: vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine's sizes and speed; the names are those of vLLM's arguments where it has one.

    Attributes:
        num_blocks: KV blocks that requests can have; vLLM's own count has one more, the null block.
        block_size: tokens in a block.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of one step, prompts' and answers' together.
        policy: who is next, and who is preempted.
        prefix_caching: whether blocks are kept and found again after their request.
        max_num_queued_reqs: unfinished requests, running ones too, above which more are refused.
        max_num_queued_tokens: prompt tokens of requests without a first token, from which on more
            requests are refused.
        pace: how long things take.

    Raises:
        ValueError: a size below one, or a cap below zero.
    """

    num_blocks: int = 1000
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    policy: Policy = Policy.FCFS
    prefix_caching: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            cap = getattr(self, name)
            if cap is not None and cap < 0:
                raise ValueError(f"{name} must not be negative")
