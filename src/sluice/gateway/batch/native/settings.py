"""The configuration of a provider's own batches."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

from pydantic import BaseModel, ConfigDict, Field

from sluice.gateway.batch.native.rules import NativePolicy


class NativeBatchSettings(BaseModel):
    """A provider's own batches, at a discount; see `NativePolicy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    price_share: Decimal = Field(Decimal("0.5"), ge=0, le=1)
    min_items: int = Field(100, ge=1)
    live_hours: float = Field(4.0, gt=0, le=24 * 7)
    poll_seconds: float = Field(30.0, ge=1, le=3600)

    def policy(self) -> NativePolicy:
        """The same as a policy."""
        return NativePolicy(
            enabled=self.enabled,
            price_share=Fraction(self.price_share),
            min_items=self.min_items,
            live_time=timedelta(hours=self.live_hours),
            poll_seconds=self.poll_seconds,
        )
