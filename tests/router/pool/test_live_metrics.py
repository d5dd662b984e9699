"""Readings of vLLM's metrics."""

from __future__ import annotations

from sluice.router.pool.engine_metrics import EngineReadings, read_metrics

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1.2e+06
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 300.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2048"} 1.0
process_resident_memory_bytes 1.0
"""


def test_what_is_of_use_is_read() -> None:
    readings = read_metrics(TEXT)
    assert readings == EngineReadings(5, 4, 0.25, 1_200_000, 300, 1, 2048, 16)
    assert readings.kv_tokens == 32_768
    assert readings.hit_rate == 300 / 1_200_000


def test_what_is_absent_is_zero_or_unknown() -> None:
    assert read_metrics("") == EngineReadings()
    assert EngineReadings().hit_rate is None
    assert read_metrics('vllm:cache_config_info{num_gpu_blocks="None"} 1').kv_tokens is None
