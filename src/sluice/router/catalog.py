"""The catalogue: models that may be asked for, and the deployments that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sluice.backends.base import Endpoint

Capability = Literal[
    "chat",
    "completions",
    "embeddings",
    "moderations",
    "tools",
    "vision",
    "json_schema",
    "reasoning",
]
Tier = Literal["interactive", "batch"]

#: What a model must be capable of to be asked for at an endpoint.
NEEDED: Mapping[Endpoint, Capability] = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "completions",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.MESSAGES: "chat",
    Endpoint.COUNT_TOKENS: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MODERATIONS: "moderations",
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits on one upstream call, in seconds.

    Attributes:
        first_token: from sending to the first generated token, or to the whole answer where it
            is not streamed.
        between_tokens: between two pieces of a stream.
        total: on the whole call.
    """

    first_token: float = 120.0
    between_tokens: float = 60.0
    total: float = 600.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model as one provider serves it.

    Attributes:
        provider: the provider's name in the configuration.
        model: the provider's name of the model.
        weight: share of the traffic among the model's deployments.
        timeouts: limits on calls.
        defaults: sampling parameters for requests that give none.
    """

    provider: str
    model: str
    weight: int = 100
    timeouts: Timeouts = Timeouts()
    defaults: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """`provider/model`, as records and logs have it."""
        return f"{self.provider}/{self.model}"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that callers may name.

    Attributes:
        name: the alias that callers use.
        context_length: tokens of prompt and output together.
        capabilities: what it can do.
        tiers: which tiers may use it.
        deployments: where it runs.
        default_max_tokens: bound on output for requests that give none; None: they must.
        owned_by: what `GET /v1/models` says.
        canary: a version of it that answers a part of its conversations.
        shadow: a version of it that is asked a part of its requests, and is not heard.
    """

    name: str
    context_length: int
    capabilities: frozenset[Capability]
    tiers: frozenset[Tier]
    deployments: tuple[Deployment, ...]
    default_max_tokens: int | None = None
    owned_by: str = "sluice"
    canary: Trial | None = None
    shadow: Trial | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Another version of a model, which is being tried.

    Attributes:
        model: the version, under the same name.
        share: the part, in percent.
    """

    model: Model
    share: float


class Catalog:
    """The models by name. They may change while the process runs: all of them at once, so that
    whoever holds a model holds one that was whole.

    Attributes:
        created: when the catalogue was loaded, seconds since the epoch.
        generation: grows with every change; what was derived from another one is out of date.
    """

    def __init__(self, models: Iterable[Model], created: int) -> None:
        """Args:
        models: in the order in which they are listed.
        created: see there.
        """
        self._models = {model.name: model for model in models}
        self.created = created
        self.generation = 0

    def replace(self, models: Iterable[Model]) -> None:
        """From now on these are the models."""
        self._models = {model.name: model for model in models}
        self.generation += 1

    def get(self, name: str) -> Model | None:
        """The model of a name, or None."""
        return self._models.get(name)

    def models(self) -> list[Model]:
        """All models, in the order in which they are listed."""
        return list(self._models.values())

    def deployments(self) -> frozenset[str]:
        """The names of all deployments."""
        models = self.models()
        trials = (trial for model in models for trial in (model.canary, model.shadow))
        tried = [trial.model for trial in trials if trial is not None]
        return frozenset(each.name for model in (*models, *tried) for each in model.deployments)
