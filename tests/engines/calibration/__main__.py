"""Measures the real vLLM, fits the pace, prints how far off it is; `--write` keeps the pace."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from sluice.backends.engine import EngineConfig
from tests.engines.calibration.fitting import fit
from tests.engines.calibration.loads import Load, fitting_loads, held_out_loads
from tests.engines.calibration.measuring import Timing, quickest
from tests.engines.calibration.report import compare, median_errors, table
from tests.engines.fixtures import ROOT, TINY_MODEL, VLLM_PYTHON
from tests.engines.vllm_engine import VllmEngine

PRESETS = ROOT / "src/sluice/backends/engine/presets.json"
MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 512


def create_engine(python: Path, model: Path, log: Path, kv_cache_mb: int = 256) -> VllmEngine:
    """A real engine of the sizes that the pace is fitted for."""
    sizes = ("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS))
    return VllmEngine(
        python,
        model,
        log=log,
        max_num_seqs=MAX_NUM_SEQS,
        kv_cache_mb=kv_cache_mb,
        extra_args=sizes,
    )


def same_sizes(engine: VllmEngine) -> EngineConfig:
    """A simulated engine of the real one's sizes."""
    labels = engine.labels("vllm:cache_config_info")
    return EngineConfig(
        # One is the null block, which nobody is given.
        num_blocks=int(labels["num_gpu_blocks"]) - 1,
        block_size=int(labels["block_size"]),
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )


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


async def _measure(engine: VllmEngine, runs: int) -> Measurements:
    async def all_of(loads: list[Load]) -> list[tuple[Load, list[Timing]]]:
        return [(load, await quickest(engine.url, engine.model, load, runs)) for load in loads]

    # The first steps of a fresh engine are slow.
    await quickest(engine.url, engine.model, fitting_loads(seed=0)[3], 1)
    fitting, held_out = await all_of(fitting_loads(seed=1)), await all_of(held_out_loads(seed=2))
    return Measurements(same_sizes(engine), fitting, held_out)


def _measurements(path: Path | None, runs: int) -> Measurements:
    """Those in the file; without one, new ones, kept in it."""
    if path is not None and path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Measurements)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        with create_engine(VLLM_PYTHON, TINY_MODEL, log) as engine:
            measurements = asyncio.run(_measure(engine, runs))
    if path is not None:
        path.write_bytes(msgspec.json.encode(measurements))
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the pace as preset cpu-tiny")
    parser.add_argument("--runs", type=int, default=7, help="of each load; the quickest counts")
    parser.add_argument(
        "--measurements", type=Path, help="file that they are kept in, or read from"
    )
    arguments = parser.parse_args()
    measurements = _measurements(arguments.measurements, arguments.runs)
    pace = fit(measurements.config, measurements.fitting)
    rows = compare(replace(measurements.config, pace=pace), measurements.held_out)
    print(table(rows))
    print(msgspec.json.encode(asdict(pace)).decode(), median_errors(rows))
    print("load average", os.getloadavg())
    if arguments.write:
        preset = {"pace": asdict(pace), "median_errors": median_errors(rows)}
        PRESETS.write_bytes(
            msgspec.json.format(msgspec.json.encode({"cpu-tiny": preset}), indent=2) + b"\n"
        )


if __name__ == "__main__":
    main()
