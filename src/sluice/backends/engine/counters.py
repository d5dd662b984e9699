"""What `/metrics` counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, under vLLM's names without `vllm:` and `_total`.

    Attributes:
        prompt_tokens: of requests that have had their first token.
        generation_tokens: tokens of answers.
        prefix_cache_queries: tokens of requests that began to run, preempted ones not again.
        prefix_cache_hits: those of them that were found.
        num_preemptions: how often requests lost their blocks.
        request_success: finished requests by reason.
        admission_rejections: refused requests by reason.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    request_success: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )
    admission_rejections: dict[str, int] = field(
        default_factory=lambda: {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
    )
