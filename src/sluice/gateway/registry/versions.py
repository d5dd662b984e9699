"""Model versions. What an engine loads is fixed when a version is made; what callers are told and
charged may change."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated
from uuid import UUID

import msgspec

from sluice.backends.replicas import Stage
from sluice.backends.worker.manifest import Manifest, check_manifest
from sluice.backends.worker.model import Count, EngineSettings, Parallelism
from sluice.billing.prices import Price, nano_usd
from sluice.gateway.tenancy.roles import INSTALLATION, Place
from sluice.router.catalog import Capability, Tier

#: A model's name stands in paths, in one segment.
ModelName = Annotated[
    str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]*$(?!\n)")
]
VersionName = Annotated[
    str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")
]
PoolName = Annotated[
    str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")
]

#: They stand for the version that is in them, where a version is asked for.
STAGES: tuple[Stage, ...] = ("prod", "canary", "shadow")

_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters for requests that give none; None: the engine's own default."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=2)] | None = None

    def pairs(self) -> tuple[tuple[str, float], ...]:
        """Those that are given, by name."""
        given = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return tuple((name, value) for name, value in given if value is not None)


class PriceTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens, as decimal text. Input that is cached or written to a cache costs
    what input costs, unless it has a price of its own; `batch_share` is the part of all of it that
    batch requests cost."""

    input_per_mtok: Decimal
    output_per_mtok: Decimal = Decimal(0)
    cached_input_per_mtok: Decimal | None = None
    cache_write_per_mtok: Decimal | None = None
    batch_share: Decimal | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                try:
                    nano_usd(value)
                except ValueError as error:
                    raise ValueError(f"`price.{name}`: {error}") from None
        if self.batch_share is not None and self.batch_share > 1:
            raise ValueError("`price.batch_share` must be between 0 and 1")

    def price(self) -> Price:
        """The same in nano-USD."""
        return Price.of_usd(
            self.input_per_mtok,
            self.output_per_mtok,
            self.cached_input_per_mtok,
            self.cache_write_per_mtok,
            self.batch_share,
        )


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be changed of a version.

    Attributes:
        sampling: for requests that give none.
        price: None: it is free.
        tiers: which may use it.
        default_max_tokens: bound on output for requests that give none; None: they must.
    """

    sampling: Sampling = Sampling()
    price: PriceTerms | None = None
    tiers: Annotated[tuple[Tier, ...], msgspec.Meta(min_length=1)] = ("interactive", "batch")
    default_max_tokens: Count | None = None


class NewVersion(Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version to be registered; it serves nobody before it is promoted.

    Attributes:
        name: the model's.
        version: within the model; not the name of a stage.
        pool: the pool that its replicas join, which no other version in a stage has.
        weights: where they are: a directory, or a URL.
        manifest: the files of the weights, see `sluice models manifest`.
        context_length: tokens of prompt and output together.
        capabilities: what it can do.
        parallelism, engine: how vLLM runs it.
    """

    name: ModelName
    version: VersionName
    pool: PoolName
    weights: Annotated[str, msgspec.Meta(min_length=1, max_length=2000, pattern=r"^[^\x00]*$")]
    manifest: Manifest
    context_length: Count
    capabilities: Annotated[tuple[Capability, ...], msgspec.Meta(min_length=1)]
    parallelism: Parallelism = Parallelism()
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        if self.version in STAGES:
            raise ValueError("`version` must not be the name of a stage")
        check_manifest(self.manifest)
        if self.default_max_tokens is not None and self.default_max_tokens > self.context_length:
            raise ValueError("`default_max_tokens` must not exceed `context_length`")


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version as it is registered.

    Attributes:
        stage: `prod` serves; `canary` serves its share of the conversations; `shadow` is asked its
            share of the requests, for nobody; None: it serves nobody, yet or any more.
        share: of a canary or a shadow, in percent.
        staged_at: when the stage became what it is.
        revision: grows with every change; the ETag.

    The others are `NewVersion`'s.
    """

    id: UUID
    name: str
    version: str
    stage: Stage | None
    share: float | None
    pool: str
    weights: str
    manifest: Manifest
    context_length: int
    capabilities: tuple[Capability, ...]
    parallelism: Parallelism
    engine: EngineSettings
    sampling: Sampling
    price: PriceTerms | None
    tiers: tuple[Tier, ...]
    default_max_tokens: int | None
    created_at: datetime
    staged_at: datetime | None
    revision: int

    @property
    def place(self) -> Place:
        """Where it is: models are the installation's."""
        return INSTALLATION
