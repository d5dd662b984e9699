"""What an engine's metrics say. Pure: text in, values out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_CACHE = "vllm:cache_config_info"
_ALL = (_RUNNING, _WAITING, _KV_USAGE, *_TOKENS, _CACHE)


class NotMetrics(Exception):
    """The text is not the metrics of a vLLM."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An engine at one moment, all its ranks together.

    Attributes:
        running: requests in its batches.
        waiting: requests in its queues.
        kv_usage: the fullest KV cache, 0 to 1.
        tokens: prompt and output tokens computed since its start.
        kv_blocks: of its KV caches; None: it doesn't tell.
        block_size: tokens in a block; None: it doesn't tell.
    """

    running: int
    waiting: int
    kv_usage: float
    tokens: float
    kv_blocks: int | None
    block_size: int | None

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.running == 0 and self.waiting == 0


def read_metrics(text: str) -> Reading:
    """The reading of `GET /metrics`.

    Raises:
        NotMetrics: the text is something else.
    """
    # Hundreds of lines of histograms are of no interest, and parsing is not free.
    lines = (line for line in text.splitlines() if line.startswith(_ALL))
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError as error:
        raise NotMetrics(f"the metrics can't be read: {error}") from None
    samples = [sample for family in families for sample in family.samples]
    if not any(sample.name == _RUNNING for sample in samples):
        raise NotMetrics("the metrics are not vLLM's")
    caches = [sample.labels for sample in samples if sample.name == _CACHE]
    blocks = [_whole(labels.get("num_gpu_blocks")) for labels in caches]
    known = [count for count in blocks if count is not None]
    return Reading(
        running=int(sum(_values(samples, _RUNNING))),
        waiting=int(sum(_values(samples, _WAITING))),
        kv_usage=max(_values(samples, _KV_USAGE), default=0.0),
        tokens=sum(sum(_values(samples, name)) for name in _TOKENS),
        kv_blocks=sum(known) if known else None,
        block_size=next((_whole(labels.get("block_size")) for labels in caches), None),
    )


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    return [s.value for s in samples if s.name == name and math.isfinite(s.value)]


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
