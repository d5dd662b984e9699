"""The simulator's `/metrics`, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sluice.backends.simulator_pacing import Readings


def render(readings: Readings, model: str) -> bytes:
    """The exposition of one moment."""
    registry = CollectorRegistry()
    registry.register(_Moment(readings, {"engine": "0", "model_name": model}))
    return generate_latest(registry)


class _Moment(Collector):
    def __init__(self, readings: Readings, labels: Mapping[str, str]) -> None:
        self._readings = readings
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        now, totals = self._readings, self._readings.counters
        yield self._gauge("num_requests_running", "Requests in the batch.", now.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", now.waiting)
        yield self._counter("prompt_tokens", "Prompt tokens.", totals.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens made.", totals.generation_tokens)
        yield self._by(
            "request_success", "Ended requests.", "finished_reason", totals.request_success
        )
        if now.kv_usage is None:
            return
        yield self._gauge("kv_cache_usage_perc", "KV cache in use; 1 is all.", now.kv_usage)
        queries, hits = totals.prefix_cache_queries, totals.prefix_cache_hits
        yield self._counter("prefix_cache_queries", "Tokens looked for.", queries)
        yield self._counter("prefix_cache_hits", "Tokens found.", hits)
        yield self._counter("num_preemptions", "Preemptions.", totals.num_preemptions)
        yield self._by(
            "admission_rejections", "Refused requests.", "reason", totals.admission_rejections
        )
        # With its null block, as vLLM counts.
        blocks = 0 if now.num_blocks is None else now.num_blocks + 1
        sizes = {"block_size": str(now.block_size), "num_gpu_blocks": str(blocks)}
        yield self._gauge("cache_config_info", "The KV cache's size.", 1, sizes)

    def _gauge(
        self, name: str, text: str, value: float, more: Mapping[str, str] | None = None
    ) -> Metric:
        labels = {**self._labels, **(more or {})}
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by(self, name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family
