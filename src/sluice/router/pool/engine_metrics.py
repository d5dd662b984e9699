"""What a vLLM replica says of itself on `/metrics`, as far as a pool has a use for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_SUMMED = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
    }
)


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """One reading.

    Attributes:
        running: requests in its batch.
        waiting: requests in its queue.
        kv_usage: share of its KV cache in use, 0 to 1.
        prefix_queries: tokens looked up in its prefix cache since it started.
        prefix_hits: those that were found.
        preemptions: since it started.
        kv_blocks: blocks of its KV cache; None: it does not say.
        block_size: tokens in one of them; None: it does not say.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    kv_blocks: int | None = None
    block_size: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens that were found in its prefix cache, once there were any."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else None

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that its KV cache holds, if it says."""
        if not self.kv_blocks or not self.block_size:
            return None
        return self.kv_blocks * self.block_size


def read_metrics(text: str) -> EngineReadings:
    """The reading of an exposition text; what is absent is zero."""
    sums: dict[str, float] = {}
    cache: Mapping[str, str] = {}
    for name, labels, value in _SAMPLE.findall(text):
        if name == "cache_config_info":
            cache = dict(_LABEL.findall(labels))
        elif name in _SUMMED:
            sums[name] = sums.get(name, 0.0) + float(value)
    return EngineReadings(
        running=int(sums.get("num_requests_running", 0)),
        waiting=int(sums.get("num_requests_waiting", 0)),
        kv_usage=sums.get("kv_cache_usage_perc", 0.0),
        prefix_queries=int(sums.get("prefix_cache_queries_total", 0)),
        prefix_hits=int(sums.get("prefix_cache_hits_total", 0)),
        preemptions=int(sums.get("num_preemptions_total", 0)),
        kv_blocks=_count(cache.get("num_gpu_blocks")),
        block_size=_count(cache.get("block_size")),
    )


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None
