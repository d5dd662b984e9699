"""The configuration's `learning` section."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sluice.billing.prices import nano_usd


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ComparisonSettings(_Strict):
    """Requests that are put to the other tier as well, for a judge to compare the answers.

    Attributes:
        judge: a model of the catalogue.
        share: of the requests to `auto` aliases that are compared, in percent.
        daily_budget_usd: what all comparisons of a day (UTC) may cost together, at most.
        team: the team that pays, by name; None: the team whose request is compared.
    """

    judge: str = Field(min_length=1)
    share: float = Field(gt=0, le=100)
    daily_budget_usd: Decimal
    team: str | None = None

    @field_validator("daily_budget_usd")
    @classmethod
    def _money(cls, value: Decimal) -> Decimal:
        nano_usd(value)
        return value


class RetrainingSettings(_Strict):
    """When models are trained, and on what.

    Attributes:
        hours: between two candidates of an alias.
        labels: at least so many requests must have outcomes of both tiers.
        days: older requests are forgotten.
        promote: take a candidate that proved better into use without being asked.
    """

    hours: float = Field(24.0, gt=0)
    labels: int = Field(350, ge=100)
    days: int = Field(60, ge=1, le=365)
    promote: bool = True


class LearningSettings(_Strict):
    """How `auto` learns by its own traffic.

    Attributes:
        retention_days: for how long decisions, feedback and other labels are kept.
    """

    comparisons: ComparisonSettings | None = None
    retraining: RetrainingSettings = RetrainingSettings()
    retention_days: float = Field(90.0, ge=7)

    @model_validator(mode="after")
    def _keeps_what_training_reads(self) -> LearningSettings:
        if self.retention_days < self.retraining.days:
            raise ValueError("`retention_days` must not be less than `retraining.days`")
        return self
