"""What a request needs, before anybody knows what it will use: tokens for rates, money for budgets.

The two differ on purpose. A rate takes the likely number of prompt tokens, learnt from what models
reported for prompts before; a budget takes a bound that no prompt can exceed, so that what is
settled never goes over what was admitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.router.catalog import Model
from sluice.wire.inline_data import IMAGE_TOKENS
from sluice.wire.request import Request, member, texts

#: Tokens that a template or an upstream may put around a request.
OVERHEAD_TOKENS = 1024

#: Most tokens that an upstream counts for one picture or document that the body only refers to.
REFERRED_TOKENS = 16_384

#: Weight of the newest observation.
_WEIGHT = 0.05

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{1024,}={0,2}")
_REFERENCES = (b'image_url"', b'_image"', b'"image"', b'file"', b'"document"', b'_audio"')


class Need(msgspec.Struct, frozen=True, gc=False):
    """What a request is admitted with.

    Attributes:
        tokens: likely prompt tokens, and all output tokens that it may generate.
        nano_usd: more than it can cost at any model that it may reach.
        text: bytes that the prompt's tokens were estimated from; 0 where it isn't text alone.
        slots: of concurrency that it takes: one; or none, and then nothing but the number of
            requests limits it.
    """

    tokens: int = 0
    nano_usd: int = 0
    text: int = 0
    slots: int = 1


#: A call that generates nothing, such as one about a file. It is a request like any other, but
#: must not have to wait for those that generate: a team whose batch takes all of its slots may ask
#: how the batch is doing.
BARE_CALL = Need(slots=0)


@dataclass(slots=True)
class _Ratio:
    """Tokens per byte of a model's requests: mean, and mean deviation."""

    mean: float = 0.25
    deviation: float = 0.05


#: Of a model that has not answered yet.
_UNKNOWN = _Ratio()


class TokenEstimates:
    """Prompt tokens by the size of the request, calibrated by what each model reports."""

    def __init__(self) -> None:
        self._ratios: dict[str, _Ratio] = {}

    def learn(self, model: str, size: int, tokens: int) -> None:
        """A request of so many bytes turned out to have so many prompt tokens."""
        if size <= 0 or tokens <= 0:
            return
        seen = tokens / size
        ratio = self._ratios.get(model)
        if ratio is None:
            ratio = self._ratios[model] = _Ratio(mean=seen)
        ratio.deviation += _WEIGHT * (abs(seen - ratio.mean) - ratio.deviation)
        ratio.mean += _WEIGHT * (seen - ratio.mean)

    def estimate(self, model: str, size: int) -> int:
        """Likely prompt tokens; more than the true number in most cases."""
        ratio = self._ratios.get(model) or _UNKNOWN
        return int(size * (ratio.mean + 2 * ratio.deviation)) + 1


class Needs:
    """Turns requests into needs."""

    def __init__(self, prices: Mapping[str, Price], estimates: TokenEstimates) -> None:
        """Args:
        prices: by model name; a model without one is free.
        estimates: of prompt tokens.
        """
        self._prices = prices
        self._estimates = estimates

    def of(
        self,
        endpoint: Endpoint,
        request: Request,
        body: bytes,
        models: Sequence[Model],
        stored: bytes = b"",
    ) -> Need:
        """What a request needs.

        Args:
            endpoint: the operation.
            request: with its bound on output.
            body: its JSON text.
            models: those that it may reach, the one that it asks for first.
            stored: JSON text of what the model is given besides, as the conversation so far.
        """
        output = 0
        if request.max_tokens is not None:
            output = request.max_tokens * _answers(endpoint, request)
        content = measure(body)
        if stored:
            content = content.with_more(measure(stored))
        text = content.text
        likely = self._estimates.estimate(request.model, text)
        most = len(body) + len(stored) + OVERHEAD_TOKENS
        if content.references:
            likely += content.pictures * IMAGE_TOKENS
            most += content.references * REFERRED_TOKENS
            text = 0
        cost = 0
        for model in models:
            if (dearer := self._most(model, most, output)) > cost:
                cost = dearer
        longest = models[0].context_length
        return Need((likely if likely < longest else longest) + output, cost, text)

    def learn(self, model: str, need: Need, input_tokens: int) -> None:
        """A request turned out to have so many prompt tokens."""
        self._estimates.learn(model, need.text, input_tokens)

    def _most(self, model: Model, prompt: int, output: int) -> int:
        price = self._prices.get(model.name)
        if price is None:
            return 0
        dearest = max(price.input, price.cached_input, price.cache_write)
        tokens = min(prompt, model.context_length)
        return -(-(tokens * dearest + output * price.output) // 1_000_000)


def _answers(endpoint: Endpoint, request: Request) -> int:
    """How many answers are asked for, each of them bounded by `max_tokens`."""
    members = request.members
    several = 1
    if "n" in members or "best_of" in members:
        several = max(member(members, name, int) or 1 for name in ("n", "best_of"))
    if endpoint is Endpoint.COMPLETIONS:
        several *= len(texts(members, "prompt"))
    return several


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a body is made of.

    Attributes:
        text: bytes without those of pictures.
        pictures: pictures, recordings and documents inside the body.
        references: places where there may be content that the body does not hold itself.
    """

    text: int
    pictures: int
    references: int

    def with_more(self, other: Content) -> Content:
        """What both are made of together."""
        return Content(
            self.text + other.text,
            self.pictures + other.pictures,
            self.references + other.references,
        )


def measure(body: bytes) -> Content:
    """What a body is made of, in one pass without decoding it."""
    references = 0
    for name in _REFERENCES:
        references += body.count(name)
    text, pictures = len(body), 0
    if references and len(body) > 1024:
        for found in _BASE64.finditer(body):
            text -= found.end() - found.start()
            pictures += 1
    return Content(text, pictures, references)
