"""A request as the pool's queue sees it."""

from __future__ import annotations

from typing import Literal

import msgspec

Priority = Literal["high", "normal", "low"]
Tier = Literal["interactive", "batch"]

#: Priorities in the order in which they are served.
BANDS: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}


class QueueRequest(msgspec.Struct, frozen=True, gc=False):
    """A request as the queue sees it.

    Attributes:
        id: unique among those that wait.
        team: whose counter it is charged to.
        input_tokens: of its prompt.
        work_tokens: of those that a replica will probably have to compute.
        priority: its band.
        tier: batch requests fill what interactive ones leave.
        slo: seconds to its first token, counted from `offer`; None: it waits for ever.
        weight: the team's, a share relative to other teams'.
        arrived: when it came, seconds.
        taken_back: how often it left the queue and had to come back.
    """

    id: str
    team: str
    input_tokens: int
    work_tokens: int
    priority: Priority = "normal"
    tier: Tier = "interactive"
    slo: float | None = None
    weight: float = 1.0
    arrived: float = 0.0
    taken_back: int = 0
