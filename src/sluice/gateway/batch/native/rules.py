"""Which batches may go to a provider's own batches, and until when. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction

from sluice.backends.base import Endpoint
from sluice.billing.prices import Price
from sluice.router.catalog import NEEDED, Catalog, Deployment, Model

#: A batch goes natively only if at least so many times the time for live calls is left.
_PATIENCE = 2

#: Operations whose items stand for themselves. Responses may continue conversations that are kept
#: here, and are to be remembered: they are called live.
ENDPOINTS = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS})


@dataclass(frozen=True, slots=True)
class NativePolicy:
    """What one provider's batches are used for.

    Attributes:
        enabled: new batches go there; otherwise only those that are there are seen to.
        price_share: part of the model's price that items there cost.
        min_items: a batch with fewer goes live.
        live_time: how long before a batch's deadline everything is taken back, to be called live.
        poll_seconds: between two looks at a batch.
    """

    enabled: bool = True
    price_share: Fraction = Fraction(1, 2)
    min_items: int = 100
    live_time: timedelta = timedelta(hours=4)
    poll_seconds: float = 30.0

    def price(self, price: Price) -> Price:
        """A model's price for items there: never more than for items that are called live."""
        return replace(price, batch_share=min(price.batch_share, self.price_share))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model's items may go."""

    model: Model
    deployment: Deployment
    policy: NativePolicy


class NativeRules:
    """Which batches may go where."""

    def __init__(self, catalog: Catalog, policies: Mapping[str, NativePolicy]) -> None:
        """Args:
        catalog: the models.
        policies: of the providers whose batches are used, by the providers' names.
        """
        self._catalog = catalog
        self._policies = policies

    def goes_natively(self, model: str) -> bool:
        """Whether batches of a model may go to a provider: it is decided for each before any of
        its items is called live."""
        return any(self.target(model, endpoint) is not None for endpoint in ENDPOINTS)

    def models(self) -> list[str]:
        """The models of which batches may go to a provider."""
        return [each.name for each in self._catalog.models() if self.goes_natively(each.name)]

    def target(self, model: str, endpoint: Endpoint) -> Target | None:
        """Where items of an operation may go; None: they are called live.

        A model goes natively where it is served by one deployment: several, or another version
        that is being tried, have shares of the traffic which one batch would upset.
        """
        known = self._catalog.get(model)
        if known is None or endpoint not in ENDPOINTS or NEEDED[endpoint] not in known.capabilities:
            return None
        usable = [each for each in known.deployments if each.weight > 0]
        if len(usable) != 1 or known.canary or known.shadow or "batch" not in known.tiers:
            return None
        policy = self._policies.get(usable[0].provider)
        if policy is None or not policy.enabled:
            return None
        return Target(known, usable[0], policy)

    def decide(
        self, model: str, endpoint: Endpoint, total: int, expires_at: datetime, now: datetime
    ) -> Target | None:
        """Where the items of a batch go; None: they are called live.

        Args:
            total: items of the batch.
            expires_at: its deadline.
        """
        target = self.target(model, endpoint)
        if target is None or total < target.policy.min_items:
            return None
        return target if expires_at - now >= _PATIENCE * target.policy.live_time else None


def must_return(policy: NativePolicy, status: str, expires_at: datetime, now: datetime) -> bool:
    """Whether items at a provider are to be taken back: their batch is being ended, or has just
    the time left that live calls need."""
    return status != "in_progress" or expires_at - now <= policy.live_time
