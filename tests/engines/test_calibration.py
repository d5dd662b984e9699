"""The simulated engine beside the real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from sluice.backends.engine import Engine, EngineConfig, EngineRequest, Pace
from tests.engines.calibration.__main__ import create_engine, same_sizes
from tests.engines.calibration.fitting import fit
from tests.engines.calibration.loads import Ask, Load, fitting_loads, held_out_loads
from tests.engines.calibration.measuring import measure, quickest
from tests.engines.calibration.report import compare, median_errors
from tests.engines.calibration.simulating import simulate
from tests.engines.vllm_engine import VllmEngine

SIZES = EngineConfig(num_blocks=1000, block_size=128, max_num_seqs=16, max_num_batched_tokens=512)


def test_a_pace_that_is_known_is_found() -> None:
    known = Pace(
        step_seconds=0.003,
        floor_seconds=0.0,
        prefill_token_seconds=8e-5,
        prefill_context_seconds=2e-8,
        decode_seconds=4e-4,
        decode_context_seconds=5e-7,
        request_seconds=0.006,
        request_token_seconds=3e-6,
    )
    config = replace(SIZES, pace=known)
    loads = fitting_loads(seed=3)
    measured = [(load, [each.timing for each in simulate(config, load)]) for load in loads]
    found = fit(SIZES, measured)
    rows = compare(replace(SIZES, pace=found), [
        (load, [each.timing for each in simulate(config, load)]) for load in held_out_loads(seed=4)
    ])  # fmt: skip
    assert max(median_errors(rows).values()) < 0.01
    assert found.step_seconds == pytest.approx(known.step_seconds, rel=0.05)
    assert found.prefill_token_seconds == pytest.approx(known.prefill_token_seconds, rel=0.05)
    assert found.decode_seconds == pytest.approx(known.decode_seconds, rel=0.05)


@pytest.fixture(scope="module")
def small_engine(vllm_python: Path, tiny_model: Path, engine_logs: Path) -> Iterator[VllmEngine]:
    """A real engine with 32 KV blocks, which are soon full."""
    log = engine_logs / "vllm-small.log"
    with create_engine(vllm_python, tiny_model, log, kv_cache_mb=8) as engine:
        yield engine


def branching(number: int, seed: int) -> Load:
    """Prompts that have beginnings in common, one after the other."""
    random = Random(seed)
    blocks = {
        (position, branch): tuple(random.choices(range(10, 4000), k=128))
        for position in range(12)
        for branch in range(2)
    }
    asks = []
    for _ in range(number):
        prompt: tuple[int, ...] = ()
        for position in range(random.randint(0, 11)):
            prompt += blocks[position, random.choice([0, 0, 0, 1])]
        prompt += tuple(random.choices(range(10, 4000), k=random.randint(0, 127)))
        asks.append(Ask(prompt or (10,), random.randint(1, 200)))
    return Load("branching", tuple(asks), 1)


@pytest.mark.vllm
@pytest.mark.slow
async def test_a_full_cache_keeps_and_forgets_what_the_real_one_does(
    small_engine: VllmEngine,
) -> None:
    load = branching(36, seed=5)
    real = await measure(small_engine.url, small_engine.model, load, salt="one")
    simulated = simulate(same_sizes(small_engine), load)
    assert [each.timing.cached for each in simulated] == [timing.cached for timing in real]
    assert sum(timing.cached for timing in real) > 0


@pytest.mark.vllm
@pytest.mark.slow
async def test_more_than_the_blocks_hold_preempts_in_both_and_all_finish(
    small_engine: VllmEngine,
) -> None:
    random = Random(6)
    asks = tuple(Ask(tuple(random.choices(range(10, 4000), k=600)), 300) for _ in range(6))
    load = Load("too much", asks, 6)
    before = small_engine.metric("vllm:num_preemptions_total")
    await measure(small_engine.url, small_engine.model, load, salt="two")
    assert small_engine.metric("vllm:num_preemptions_total") > before
    simulated = Engine(same_sizes(small_engine))
    for number, ask in enumerate(asks):
        simulated.submit(EngineRequest(str(number), len(ask.prompt), ask.output), 0)
    while simulated.due is not None:
        simulated.step(simulated.due)
    assert simulated.counters.num_preemptions > 0
    assert simulated.counters.request_success["stop"] == len(asks)


@pytest.mark.vllm
@pytest.mark.slow
async def test_a_fitted_pace_is_of_the_real_ones_size(small_engine: VllmEngine) -> None:
    """Loosely: the machine may be busy. `python -m tests.engines.calibration` has the errors."""
    loads = [
        Load("one", tuple(Ask(tuple(range(10, 10 + n)), 20) for n in (50, 400, 900, 1400)), 1),
        Load("four", tuple(Ask(tuple(range(n, n + 60)), 60) for n in range(8)), 4),
    ]
    url, model = small_engine.url, small_engine.model
    measured = [
        (load, quickest([await measure(url, model, load, f"{n}") for n in range(3)]))
        for load in loads
    ]
    config = same_sizes(small_engine)
    pace = fit(config, measured, served=True)
    rows = compare(replace(config, pace=pace), measured, served=True)
    for row in rows:
        assert 1 / 4 < 1 + row.errors[0] < 4
