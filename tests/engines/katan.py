"""llm-katan: an OpenAI- and Anthropic-compatible upstream that others wrote.

It echoes, without a model: what it answers is independent of how this project reads the formats. It
has no embeddings, no completions, and counts words as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.engines import HOST, Engine

__all__ = ["KatanEngine"]

MODEL_NAME = "katan"


class KatanEngine(Engine):
    """An llm-katan server with its echo backend.

    Args:
        python: Interpreter of the environment that llm-katan is installed in.
        log: File that the server's output is appended to.
        providers: API formats to serve: openai, anthropic, azure_openai, bedrock, vertexai.
        ttft_ms: Pause before the first event of a stream.
        itl_ms: Pause between the events of a stream.
        extra_args: Further flags, among them the failures it can simulate: `--error-rate 0.3`
            (500), `--rate-limit-after N` (429), `--timeout-after N` (504), `--max-inflight N`
            (503), `--latency-ms N`, `--validate-keys` (401).
        start_timeout_s: How long it may take until it is healthy.
    """

    model = MODEL_NAME

    def __init__(
        self,
        python: Path,
        *,
        log: Path,
        providers: Sequence[str] = ("openai", "anthropic"),
        ttft_ms: int = 0,
        itl_ms: int = 0,
        extra_args: Sequence[str] = (),
        start_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(log=log, start_timeout_s=start_timeout_s)
        self._python = python
        self._arguments = [
            "--model", MODEL_NAME,
            "--backend", "echo",
            "--providers", ",".join(providers),
            "--ttft-ms", str(ttft_ms),
            "--itl-ms", str(itl_ms),
            # One at a time is its default.
            "--max-concurrent", "256",
            # Its default is a file in the home directory, kept between runs.
            "--stats-file", "",
            *extra_args,
        ]  # fmt: skip

    def _command(self, port: int) -> Sequence[str]:
        address = ["--host", HOST, "--port", str(port)]
        return [str(self._python), "-m", "llm_katan.cli", *address, *self._arguments]
