"""Measures the real vLLM, fits the pace, and prints how far off it is.

By the clock `processor` the engine runs alone, without a server, and its own processor time counts:
so the figures hardly depend on what else the machine does. By the clock `wall` a client asks a
server, and what the server, its client and the machine's other work take is in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from sluice.backends.engine import EngineConfig
from tests.engines.calibration.fitting import fit
from tests.engines.calibration.loads import Load, fitting_loads, held_out_loads
from tests.engines.calibration.measuring import Timing, measure, measure_inside, quickest
from tests.engines.calibration.report import compare, median_errors, table
from tests.engines.fixtures import ROOT, TINY_MODEL, VLLM_PYTHON
from tests.engines.vllm_engine import VllmEngine

PRESETS = ROOT / "src/sluice/backends/engine/presets.json"
NAMES = {"processor": "cpu-tiny", "wall": "cpu-tiny-server"}
MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 512


class Measurements(msgspec.Struct):
    """What a calibration is made from.

    Attributes:
        config: the engine's sizes.
        fitting: what the pace is fitted to.
        held_out: what it is judged by.
    """

    config: EngineConfig
    fitting: list[tuple[Load, list[Timing]]]
    held_out: list[tuple[Load, list[Timing]]]


def create_engine(python: Path, model: Path, log: Path, kv_cache_mb: int = 256) -> VllmEngine:
    """A real engine of the sizes that the pace is fitted for."""
    return VllmEngine(
        python,
        model,
        log=log,
        max_num_seqs=MAX_NUM_SEQS,
        kv_cache_mb=kv_cache_mb,
        extra_args=("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
    )


def same_sizes(engine: VllmEngine) -> EngineConfig:
    """A simulated engine of the real one's sizes."""
    labels = engine.labels("vllm:cache_config_info")
    return _config(int(labels["num_gpu_blocks"]), int(labels["block_size"]))


def _config(num_gpu_blocks: int, block_size: int) -> EngineConfig:
    return EngineConfig(
        # One is the null block, which nobody is given.
        num_blocks=num_gpu_blocks - 1,
        block_size=block_size,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )


def _through_a_server(loads: Sequence[Load], runs: int) -> tuple[EngineConfig, list[list[Timing]]]:
    async def all_of(engine: VllmEngine) -> list[list[Timing]]:
        # The first steps of a fresh engine are slow.
        await measure(engine.url, engine.model, loads[-1], "warm")
        return [
            quickest([await measure(engine.url, engine.model, load, f"{n}") for n in range(runs)])
            for load in loads
        ]

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        with create_engine(VLLM_PYTHON, TINY_MODEL, log) as engine:
            return same_sizes(engine), asyncio.run(all_of(engine))


def _alone(loads: list[Load], runs: int) -> tuple[EngineConfig, list[list[Timing]]]:
    sizes = {
        "max_model_len": 2048,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        "kv_cache_memory_bytes": 256 << 20,
    }
    inside = measure_inside(VLLM_PYTHON, TINY_MODEL, sizes, loads, runs)
    config = _config(inside.num_gpu_blocks, inside.block_size)
    return config, [quickest(timings) for timings in inside.timings]


def _measurements(clock: str, runs: int, path: Path | None) -> Measurements:
    """Those in the file; without one, new ones, kept in it."""
    if path is not None and path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Measurements)
    fitting, held_out = fitting_loads(seed=1), held_out_loads(seed=2)
    loads = [*fitting, *held_out]
    config, timings = (_alone if clock == "processor" else _through_a_server)(loads, runs)
    pairs = list(zip(loads, timings, strict=True))
    measurements = Measurements(config, pairs[: len(fitting)], pairs[len(fitting) :])
    if path is not None:
        path.write_bytes(msgspec.json.encode(measurements))
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=NAMES, default="processor")
    parser.add_argument("--write", action="store_true", help="keep the pace as a preset")
    parser.add_argument("--runs", type=int, default=5, help="of each load; the quickest counts")
    parser.add_argument("--measurements", type=Path, help="a file to keep them in, or read from")
    arguments = parser.parse_args()
    measurements = _measurements(arguments.clock, arguments.runs, arguments.measurements)
    served = arguments.clock == "wall"
    pace = fit(measurements.config, measurements.fitting, served)
    rows = compare(replace(measurements.config, pace=pace), measurements.held_out, served)
    preset = {"pace": asdict(pace), "median_errors": median_errors(rows)}
    print(table(rows), msgspec.json.encode(preset).decode(), sep="\n\n")
    print("load average:", os.getloadavg())
    if arguments.write:
        presets = msgspec.json.decode(PRESETS.read_bytes()) | {NAMES[arguments.clock]: preset}
        PRESETS.write_bytes(msgspec.json.format(msgspec.json.encode(presets), indent=2) + b"\n")


if __name__ == "__main__":
    main()
