"""Runs loads on vLLM's engine in this process, by the clock of the processor's own time.

A script for the interpreter that vLLM is installed in; nothing of ours is there to import. It reads
a JSON object, `{"model", "sizes", "loads", "runs"}`, from standard input, and writes another to the
file that is its argument: `{"num_gpu_blocks", "block_size", "timings"}`. What else the machine does
hardly shows in its figures, and no server is between.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any


class Clock:
    """The processor's time, in seconds, and the times that were skipped as nothing was to do."""

    def __init__(self) -> None:
        self._begin = time.process_time()

    def now(self) -> float:
        return time.process_time() - self._begin

    def skip_to(self, moment: float) -> None:
        self._begin -= max(0.0, moment - self.now())


def run(engine: Any, load: dict[str, Any], salt: str) -> list[dict[str, Any]]:
    """One load; a timing for each request, in the load's order."""
    asks, clock = load["asks"], Clock()
    left, unfinished = deque(range(len(asks))), 0
    timings: list[dict[str, Any]] = [{"sent": 0.0, "tokens": [], "cached": 0} for _ in asks]
    while left or unfinished:
        if load["concurrency"] is None and not unfinished:
            clock.skip_to(asks[left[0]]["at"])
        while left and _comes(load, asks[left[0]], unfinished, clock.now()):
            number = left.popleft()
            closed = load["concurrency"] is not None
            timings[number]["sent"] = clock.now() if closed else asks[number]["at"]
            _submit(engine, f"{salt}-{number}", asks[number], salt)
            unfinished += 1
        outputs = engine.step()
        now = clock.now()
        for output in outputs:
            timing = timings[int(output.request_id.rsplit("-", 1)[1])]
            got = len(output.outputs[0].token_ids)
            timing["tokens"] += [now] * (got - len(timing["tokens"]))
            timing["cached"] = output.num_cached_tokens or 0
            unfinished -= output.finished
    return timings


def _comes(load: dict[str, Any], ask: dict[str, Any], unfinished: int, now: float) -> bool:
    if load["concurrency"] is None:
        return bool(ask["at"] <= now)
    return bool(unfinished < load["concurrency"])


def _submit(engine: Any, request_id: str, ask: dict[str, Any], salt: str) -> None:
    from vllm import SamplingParams  # type: ignore[import-not-found]

    prompt = {"prompt_token_ids": ask["prompt"], "cache_salt": salt}
    sampling = SamplingParams(
        max_tokens=ask["output"], ignore_eos=True, temperature=0.0, repetition_penalty=2.0
    )
    engine.add_request(request_id, prompt, sampling)


def main() -> None:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]

    spec = json.load(sys.stdin)
    arguments = EngineArgs(
        model=spec["model"],
        dtype="bfloat16",
        enforce_eager=True,
        distributed_executor_backend="uni",
        **spec["sizes"],
    )
    engine = LLMEngine.from_engine_args(arguments)
    # The first steps of a fresh engine are slow.
    run(engine, spec["loads"][-1], "warm")
    timings: list[list[Any]] = [[] for _ in spec["loads"]]
    # In turn, so that each load has its runs in good times and bad.
    for number in range(spec["runs"]):
        for index, load in enumerate(spec["loads"]):
            timings[index].append(run(engine, load, f"{index}.{number}"))
    cache = engine.vllm_config.cache_config
    result = {
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "timings": timings,
    }
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
