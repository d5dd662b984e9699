"""The real vLLM on a CPU, serving the tiny model of `tiny_model.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.engines import HOST, Engine

__all__ = ["END_TOKEN_ID", "VllmEngine"]

MODEL_NAME = "tiny"
#: `logit_bias={END_TOKEN_ID: 100}` ends an answer at once, with `finish_reason` "stop".
END_TOKEN_ID = 1

ABORTED = re.compile(rb"Request \S+ aborted\.$", re.MULTILINE)

#: Greedy by default: the same prompt has the same answer, and it runs to `max_tokens` exactly. The
#: penalty keeps a model of random weights from repeating one token for ever.
GENERATION_DEFAULTS = '{"temperature": 0.0, "repetition_penalty": 2.0}'
#: Tool calls and JSON are forced into their schema, so that even noise calls a tool correctly.
GENERATE_ARGUMENTS = (
    "--override-generation-config", GENERATION_DEFAULTS,
    "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
    "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
    "--tool-strict-level", "parameter",
)  # fmt: skip
EMBED_ARGUMENTS = ("--runner", "pooling", "--convert", "embed")


class VllmEngine(Engine):
    """A vLLM OpenAI server with its own engine processes.

    Args:
        python: Interpreter of the environment that vLLM is installed in.
        model: Directory of the tiny model.
        log: File that the server's output is appended to.
        task: "generate" serves chat, completions, responses and messages; "embed" embeddings only.
        max_num_seqs: How many requests run at once; more wait in the engine.
        max_model_len: Longest prompt and answer together, in tokens; at most 4096.
        kv_cache_mb: Size of the KV cache, in steps of 256 KiB, which hold 128 tokens.
        extra_args: Further flags of the server.
        start_timeout_s: How long it may take until it is healthy.
    """

    model = MODEL_NAME

    def __init__(
        self,
        python: Path,
        model: Path,
        *,
        log: Path,
        task: Literal["generate", "embed"] = "generate",
        max_num_seqs: int = 16,
        max_model_len: int = 2048,
        kv_cache_mb: int = 256,
        extra_args: Sequence[str] = (),
        start_timeout_s: float = 240.0,
    ) -> None:
        super().__init__(log=log, start_timeout_s=start_timeout_s)
        self._python = python
        self._arguments = [
            "--model", str(model.resolve()),
            "--served-model-name", MODEL_NAME,
            "--dtype", "bfloat16",
            "--enforce-eager",
            "--distributed-executor-backend", "uni",
            "--max-model-len", str(max_model_len),
            "--max-num-seqs", str(max_num_seqs),
            "--kv-cache-memory-bytes", str(kv_cache_mb << 20),
            "--enable-prompt-tokens-details",
            "--enable-log-requests",
            *(EMBED_ARGUMENTS if task == "embed" else GENERATE_ARGUMENTS),
            *extra_args,
        ]  # fmt: skip

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples, of those with these labels when some are given.

        Raises:
            LookupError: The engine has no sample of that name, whatever the labels.
        """
        named = [sample for sample in self._samples() if sample.name == name]
        if not named:
            raise LookupError(name)
        return sum(s.value for s in named if labels.items() <= s.labels.items())

    def labels(self, name: str) -> Mapping[str, str]:
        """A metric's labels, of its first sample.

        Raises:
            LookupError: The engine has no sample of that name.
        """
        for sample in self._samples():
            if sample.name == name:
                return sample.labels
        raise LookupError(name)

    def running(self) -> int:
        """Requests that the engine is working on now."""
        return int(self.metric("vllm:num_requests_running"))

    def waiting(self) -> int:
        """Requests that wait in the engine for a place in its batch."""
        return int(self.metric("vllm:num_requests_waiting"))

    def generated_tokens(self) -> int:
        """Tokens generated since the start."""
        return int(self.metric("vllm:generation_tokens_total"))

    def aborted(self) -> int:
        """Requests ended because their client left, since the log began.

        Read from the log: the engine's counter of finished requests has a label for these, but
        never counts them.
        """
        return len(ABORTED.findall(self.log.read_bytes()))

    def _samples(self) -> Iterator[Sample]:
        for family in text_string_to_metric_families(self.get("/metrics").decode()):
            yield from family.samples

    def _command(self, port: int) -> Sequence[str]:
        # The `vllm` command of the CPU build doesn't start: it looks for a distribution named vllm.
        module = "vllm.entrypoints.openai.api_server"
        address = ["--host", HOST, "--port", str(port)]
        return [str(self._python), "-m", module, *address, *self._arguments]

    def _environment(self) -> Mapping[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The model runs inside the engine's process. The worker process that is the CPU
            # build's default talks to it by spinning, which on two cores starves the server for
            # seconds. The variable only lifts the rule that a CPU needs the worker: the engine
            # stays a process of its own.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Otherwise every engine pins its threads to the same first core.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }
