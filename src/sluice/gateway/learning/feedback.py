"""Feedback: what callers say of answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from sluice.gateway.learning.labels import Feedback, Labels, made_at
from sluice.gateway.tenancy.refusals import Missing

#: Callers may say at once what they think. The record of a request comes to the database by way of
#: the usage stream; a request that is not older than this may still be on its way, in seconds.
FRESH_SECONDS = 30.0

#: For how long a record is waited for, in seconds.
WAIT_SECONDS = 3.0

_LOOK_SECONDS = 0.05

_SCORES = {"good": 1.0, "bad": 0.0}

SourceName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]


class NewFeedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller says of an answer: a score or a label.

    Attributes:
        request_id: the answer's `x-request-id`.
        score: 0 (useless) to 1 (as good as can be).
        label: `good` is 1, `bad` is 0.
        source: who says so, such as `user` or `tests`; each source has one say a request.
    """

    request_id: UUID
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    label: Literal["good", "bad"] | None = None
    source: SourceName = "api"

    def __post_init__(self) -> None:
        if (self.score is None) == (self.label is None):
            raise ValueError("give a `label` or a `score`, and not both")

    @property
    def value(self) -> float:
        """The score that is meant."""
        return _SCORES[self.label] if self.label is not None else self.score or 0.0


class FeedbackBox:
    """Takes feedback, and waits a moment for the record of what it is about."""

    def __init__(
        self,
        labels: Labels,
        clock: Callable[[], float] = time.time,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Args:
        labels: keeps it.
        clock: seconds since the epoch.
        wait_seconds: see `WAIT_SECONDS`.
        """
        self._labels = labels
        self._clock = clock
        self._wait_seconds = wait_seconds

    async def put(self, team_id: UUID, given: NewFeedback) -> Feedback:
        """Keep it.

        Raises:
            Missing: the team has no such request.
            Conflict: it has feedback of too many sources.
        """
        made = made_at(given.request_id)
        fresh = made is not None and abs(self._clock() - made.timestamp()) < FRESH_SECONDS
        deadline = time.monotonic() + (self._wait_seconds if fresh else 0.0)
        while True:
            try:
                return await self._labels.feedback(
                    team_id, given.request_id, given.source, given.value
                )
            except Missing:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)
