"""What the worker decides on values: restarts, vitals, metrics, the command line, the model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.backends.worker.command import engine_command, engine_environment
from sluice.backends.worker.gpu import GpuMemory
from sluice.backends.worker.manifest import FileEntry
from sluice.backends.worker.metrics import NotMetrics, read_metrics
from sluice.backends.worker.model import (
    EngineSettings,
    ModelUnusable,
    Parallelism,
    ServedModel,
    read_model,
    weights_directory,
)
from sluice.backends.worker.restarts import RestartPolicy, Restarts
from sluice.backends.worker.vitals import Patience, Vitals
from tests.backends.worker.fake_engine import METRICS

MODEL = ServedModel(
    name="llama",
    version="1",
    pool="pool",
    weights="/weights",
    manifest={"a": FileEntry("0" * 64, 1)},
    context_length=8192,
)


def test_waits_double_up_to_a_limit_until_the_worker_gives_up() -> None:
    restarts = Restarts(RestartPolicy(first=1.0, longest=3.0, attempts=5))
    assert [restarts.failed(0.0) for _ in range(5)] == [1.0, 2.0, 3.0, 3.0, None]
    assert restarts.total == 5


def test_a_long_good_time_is_a_new_beginning() -> None:
    restarts = Restarts(RestartPolicy(first=1.0, attempts=3, forgive_after=10.0))
    assert [restarts.failed(0.0), restarts.failed(9.9)] == [1.0, 2.0]
    assert [restarts.failed(10.0), restarts.failed(0.0)] == [1.0, 2.0]
    assert restarts.failed(0.0) is None


def test_an_idle_engine_lives_by_its_probes() -> None:
    vitals = Vitals(Patience(silent=5.0, hung=60.0), 0.0)
    for now in range(1, 100):
        vitals.answered(0.0, now)
        vitals.probed(now)
    assert vitals.verdict(104.0) == "well"


def test_a_busy_engine_lives_by_its_tokens() -> None:
    vitals = Vitals(Patience(silent=5.0, hung=60.0), 0.0)
    for now in range(1, 1000):
        vitals.answered(float(now), now)
    assert vitals.verdict(1000.0) == "well"


def test_an_engine_without_tokens_or_probes_is_hung() -> None:
    vitals = Vitals(Patience(silent=5.0, hung=60.0), 0.0)
    vitals.answered(7.0, 1.0)
    for now in range(2, 62):
        vitals.answered(7.0, now)
        assert vitals.verdict(now) == "well"
    vitals.answered(7.0, 61.5)
    assert vitals.verdict(61.5) == "hung"


def test_an_engine_that_does_not_answer_is_silent_and_then_hung() -> None:
    vitals = Vitals(Patience(silent=5.0, hung=60.0), 0.0)
    assert vitals.verdict(5.0) == "well"
    assert vitals.verdict(5.1) == "silent"
    assert vitals.verdict(60.1) == "hung"
    vitals.answered(1.0, 60.2)
    assert vitals.verdict(60.2) == "well"


def test_metrics_are_read() -> None:
    text = METRICS.format(running=3, waiting=2, kv_usage=0.25, tokens=10.0)
    reading = read_metrics(text)
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, 0.25)
    assert reading.tokens == 20.0
    assert (reading.kv_blocks, reading.block_size) == (1000, 128)
    assert not reading.idle


def test_metrics_of_several_ranks_are_added() -> None:
    text = METRICS.format(running=3, waiting=0, kv_usage=0.25, tokens=10.0)
    two = text + text.replace('engine="0"', 'engine="1"').replace("0.25", "0.5")
    reading = read_metrics(two)
    assert (reading.running, reading.kv_usage, reading.kv_blocks) == (6, 0.5, 2000)


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running{ 1", "other_metric 1\n"])
def test_what_is_no_metrics_is_said(text: str) -> None:
    with pytest.raises(NotMetrics):
        read_metrics(text)


def test_the_command_line_has_what_is_registered() -> None:
    command = engine_command(["python", "-m", "vllm"], MODEL, Path("/w"), "::", 8000, ["--seed=1"])
    assert command == [
        *("python", "-m", "vllm"),
        *("--model", "/w", "--served-model-name", "llama"),
        *("--host", "::", "--port", "8000"),
        *("--tensor-parallel-size", "1", "--pipeline-parallel-size", "1"),
        *("--max-model-len", "8192", "--enable-prefix-caching", "--scheduling-policy", "priority"),
        *("--enable-prompt-tokens-details", "--enable-request-id-headers", "--seed=1"),
    ]


def test_the_command_line_has_limits_where_there_are_some() -> None:
    model = ServedModel(
        **{name: getattr(MODEL, name) for name in MODEL.__struct_fields__}
        | {
            "parallelism": Parallelism(tensor=4, pipeline=2),
            "engine": EngineSettings(
                prefix_caching=False,
                priority_scheduling=False,
                max_num_seqs=64,
                max_num_batched_tokens=512,
                max_queued_requests=16,
                max_queued_tokens=100_000,
            ),
            "capabilities": ("embeddings",),
        }
    )
    command = " ".join(engine_command(["vllm"], model, Path("/w"), "h", 1))
    assert "--tensor-parallel-size 4 --pipeline-parallel-size 2" in command
    assert "--no-enable-prefix-caching --scheduling-policy fcfs" in command
    assert "--max-num-seqs 64 --max-num-batched-tokens 512" in command
    assert "--max-num-queued-reqs 16 --max-num-queued-tokens 100000" in command
    assert command.endswith("--runner pooling --convert embed")


def test_an_engine_that_publishes_has_two_ports_for_it() -> None:
    command = engine_command(["vllm"], MODEL, Path("/w"), "h", 1, ["--last"], kv_events_port=5557)
    assert command[-3:] == [
        "--kv-events-config",
        '{"enable_kv_cache_events":true,"publisher":"zmq",'
        '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}',
        "--last",
    ]


def test_the_engine_gets_no_secrets_and_fetches_nothing() -> None:
    inherited = {"PATH": "/bin", "SLUICE_ADMIN_KEY": "secret", "PYTHONPATH": "/src"}
    assert engine_environment(inherited) == {
        "PATH": "/bin",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    assert engine_environment({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"name": 1}', b"\xff"])
def test_a_model_that_cannot_be_read_is_said(text: bytes) -> None:
    with pytest.raises(ModelUnusable):
        read_model(text)


def test_a_model_may_have_members_that_a_worker_does_not_know() -> None:
    known = {
        "name": "llama",
        "version": "1",
        "pool": "p",
        "weights": "/w",
        "manifest": {"a": {"sha256": "0" * 64, "size": 1}},
        "context_length": 10,
        "stage": None,
        "price": {"input_per_mtok": "1"},
    }
    assert read_model(json.dumps(known).encode()).stage is None


@pytest.mark.parametrize(
    ("weights", "directory"),
    [
        ("/weights/llama", "/weights/llama"),
        ("file:///weights/llama%20two", "/weights/llama two"),
        ("file://localhost/weights", "/weights"),
        ("relative", "relative"),
    ],
)
def test_weights_on_this_machine_are_found(weights: str, directory: str) -> None:
    assert weights_directory(weights) == Path(directory)


@pytest.mark.parametrize("weights", ["s3://bucket/llama", "hf://org/llama", "file://host/llama"])
def test_weights_elsewhere_are_to_be_brought(weights: str) -> None:
    with pytest.raises(ModelUnusable, match="--weights"):
        weights_directory(weights)


def test_gpu_memory_is_that_of_all_gpus() -> None:
    cuda = SimpleNamespace(
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(total_memory=100 * (index + 1)),
        device_memory_used=lambda index: 10 * (index + 1),
    )
    assert GpuMemory(cuda).read() == (30, 300)


def test_a_driver_that_does_not_answer_is_not_the_workers_end() -> None:
    def fail(_: int) -> int:
        raise RuntimeError("NVML")

    cuda = SimpleNamespace(
        device_count=lambda: 1,
        get_device_properties=lambda _: SimpleNamespace(total_memory=1),
        device_memory_used=fail,
    )
    assert GpuMemory(cuda).read() is None
