"""What a request needs of a model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sluice.backends.base import Endpoint
from sluice.router.catalog import NEEDED, Capability, Model, Tier
from sluice.router.complexity.view import RequestView
from sluice.wire.request import Request
from sluice.wire.usage import estimate_tokens


class Needs(msgspec.Struct, frozen=True, gc=False):
    """What a model must have to answer a request.

    Attributes:
        capabilities: that it must have.
        tokens: prompt and output together, estimated: what its context must hold.
        tier: the request's, `interactive` or `batch`.
    """

    capabilities: frozenset[Capability]
    tokens: int
    tier: Tier

    def met_by(self, model: Model) -> bool:
        """Whether a model has all of it."""
        return (
            self.capabilities <= model.capabilities
            and self.tokens <= model.context_length
            and self.tier in model.tiers
        )

    def unmet(self, models: Sequence[Model]) -> tuple[str, str]:
        """Why none of several models meets them: the parameter at fault, and what is missing."""
        checks: tuple[tuple[str, str, Callable[[Model], bool]], ...] = (
            ("x-tier", f"is open to the {self.tier} tier", lambda model: self.tier in model.tiers),
            *(
                (
                    _PARAMS.get(each, "model"),
                    f"has {each}",
                    lambda model, each=each: each in model.capabilities,
                )
                for each in sorted(self.capabilities)
            ),
            (
                "messages",
                f"has a context of {self.tokens} tokens",
                lambda model: self.tokens <= model.context_length,
            ),
        )
        left = list(models)
        for param, what, holds in checks:
            left = [model for model in left if holds(model)]
            if not left:
                return param, what
        return "model", "serves the request"


_PARAMS: dict[Capability, str] = {
    "tools": "tools",
    "vision": "messages",
    "json_schema": "response_format",
}


def needs_of(endpoint: Endpoint, request: Request, view: RequestView, tier: Tier) -> Needs:
    """What a request needs."""
    return Needs(
        CAPABILITIES[endpoint, view.tools, view.images or request.images, view.schema],
        estimate_tokens(request.prompt_characters) + (request.max_tokens or 0),
        tier,
    )


def _combinations() -> dict[tuple[Endpoint, bool, bool, bool], frozenset[Capability]]:
    truths = (False, True)
    found: dict[tuple[Endpoint, bool, bool, bool], frozenset[Capability]] = {}
    for endpoint, base in NEEDED.items():
        for tools in truths:
            for images in truths:
                for schema in truths:
                    capabilities: set[Capability] = {base}
                    capabilities |= {"tools"} if tools else set()
                    capabilities |= {"vision"} if images else set()
                    capabilities |= {"json_schema"} if schema else set()
                    found[endpoint, tools, images, schema] = frozenset(capabilities)
    return found


#: What a request needs, by its operation and whether it has tools, images and a schema.
CAPABILITIES = _combinations()
