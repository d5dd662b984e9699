"""What a worker must know of a model version: the part of the registry's record that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec

from sluice.backends.replicas import Stage
from sluice.backends.worker.manifest import Manifest

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class ModelUnusable(Exception):
    """The description of a model version can't be read, or can't be served here."""


class Parallelism(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine spreads a model over GPUs.

    Attributes:
        tensor: GPUs that share each layer.
        pipeline: groups of GPUs that follow one another.
    """

    tensor: Count = 1
    pipeline: Count = 1


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How vLLM is to run a model; None: as it decides by itself.

    Attributes:
        prefix_caching: whether it keeps the KV cache of prompts for others that begin alike.
        priority_scheduling: whether requests may name a priority.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens that one step computes: the less, the shorter a prompt
            waits for another's.
        max_queued_requests: requests that may wait; more are refused.
        max_queued_tokens: prompt tokens that may wait; the wished time to first token times the
            prefill rate.
    """

    prefix_caching: bool = True
    priority_scheduling: bool = True
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_queued_requests: Count | None = None
    max_queued_tokens: Count | None = None


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model version, as far as it concerns a worker. Members that it doesn't know are ignored.

    Attributes:
        name: the model's name, which the engine serves it under.
        pool: the pool that its replicas join.
        weights: where they are: a directory, or a `file:` URL.
        manifest: the files of the weights.
        context_length: tokens of prompt and output together.
        capabilities: the registry's; `embeddings` alone makes an engine that embeds.
    """

    name: str
    version: str
    pool: str
    weights: str
    manifest: Manifest
    context_length: Count
    stage: Stage | None = None
    parallelism: Parallelism = Parallelism()
    engine: EngineSettings = EngineSettings()
    capabilities: tuple[str, ...] = ("chat", "completions")

    @property
    def embeds(self) -> bool:
        """Whether the engine embeds; otherwise it generates."""
        return "embeddings" in self.capabilities and not (
            {"chat", "completions"} & set(self.capabilities)
        )


def read_model(text: bytes) -> ServedModel:
    """A model version from the registry's answer, or from a file of the same form.

    Raises:
        ModelUnusable: it is none.
    """
    try:
        return msgspec.json.decode(text, type=ServedModel)
    except msgspec.ValidationError as error:
        raise ModelUnusable(f"the model version can't be served: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelUnusable(f"the model version is not JSON: {error}") from None


def weights_directory(weights: str) -> Path:
    """The directory of weights that are on this machine.

    Raises:
        ModelUnusable: they are elsewhere.
    """
    parts = urlsplit(weights)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if not parts.scheme:
        return Path(weights)
    raise ModelUnusable(
        f"the weights are at {weights}: bring them onto this machine, and name their directory"
        " with --weights"
    )
