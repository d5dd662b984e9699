"""A model version as vLLM's command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sluice.backends.worker.model import ServedModel

#: Not for the engine, which runs code of others beside the weights: what opens the platform's own
#: doors, and what would change the engine's packages.
_WITHHELD = ("SLUICE_", "PYTHONPATH", "PYTHONHOME")

#: The weights are here and are checked: nothing is to be fetched, and nobody told.
_DEFAULTS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def engine_command(
    program: Sequence[str],
    model: ServedModel,
    weights: Path,
    host: str,
    port: int,
    extra: Sequence[str] = (),
    kv_events_port: int | None = None,
) -> list[str]:
    """The engine's command line.

    Args:
        program: what starts vLLM's server, up to its first option.
        model: the registered version.
        weights: the directory of its weights.
        host, port: where it listens.
        extra: the operator's own options; the last word is theirs.
        kv_events_port: where it publishes what happens to its prefix cache; the next one is for
            what was missed. None: it does not.
    """
    engine, parallel = model.engine, model.parallelism
    command = [
        *program,
        *("--model", str(weights)),
        *("--served-model-name", model.name),
        *("--host", host),
        *("--port", str(port)),
        *("--tensor-parallel-size", str(parallel.tensor)),
        *("--pipeline-parallel-size", str(parallel.pipeline)),
        *("--max-model-len", str(model.context_length)),
        "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching",
        *("--scheduling-policy", "priority" if engine.priority_scheduling else "fcfs"),
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
    ]
    limits = {
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--max-num-queued-reqs": engine.max_queued_requests,
        "--max-num-queued-tokens": engine.max_queued_tokens,
    }
    for option, value in limits.items():
        if value is not None:
            command += [option, str(value)]
    if kv_events_port is not None:
        command += ["--kv-events-config", _kv_events(kv_events_port)]
    if model.embeds:
        command += ["--runner", "pooling", "--convert", "embed"]
    return [*command, *extra]


def _kv_events(port: int) -> str:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{port + 1}",
    }
    return msgspec.json.encode(config).decode()


def engine_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: the worker's, without what isn't for it."""
    own = {name: value for name, value in inherited.items() if not name.startswith(_WITHHELD)}
    return {**_DEFAULTS, **own}
