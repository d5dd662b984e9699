"""A model of vLLM's engine that computes nothing but time: its step loop and its KV cache.

    config.py      what an operator sets
    pace.py        how long a step takes
    request.py     what is asked for, and how far it is
    block_pool.py  blocks: free, used, cached; the least recently used is given away first
    kv_cache.py    the blocks of each request
    waiting.py     who is next
    scheduler.py   one step: who gets how many tokens, who is preempted
    counters.py    what `/metrics` counts
    engine.py      the loop in virtual time
    presets.py     paces that were fitted to real engines

Nothing here reads a clock or draws a random number: the same calls have the same outcome. The rules
are those of vLLM 0.32 (`vllm/v1/core`) for a model with full attention, without speculative
decoding, LoRA or multimodal inputs.
"""

from sluice.backends.engine.config import EngineConfig, Policy
from sluice.backends.engine.engine import Engine, Output, Step
from sluice.backends.engine.pace import Load, Pace
from sluice.backends.engine.request import EngineRequest, Refusal

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "Load",
    "Output",
    "Pace",
    "Policy",
    "Refusal",
    "Step",
]
