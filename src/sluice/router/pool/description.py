"""A request as the scheduler is asked: what a pool's configuration makes of it."""

from __future__ import annotations

import math

from sluice.backends.base import UpstreamRequest
from sluice.router.pool.actions import PoolRequest
from sluice.router.pool.config import PoolConfig
from sluice.router.pool.placement import Prompt
from sluice.router.pool.queue_request import BANDS, Priority

#: Of the time to the first token, the part that queue and prefill may take; the rest is for the
#: network, the engine's front end and surprises.
_POOL_SHARE = 0.9


def described(
    request: UpstreamRequest,
    config: PoolConfig,
    request_id: str,
    prompt: Prompt,
    output_tokens: int,
) -> PoolRequest:
    """What the scheduler is asked.

    Args:
        request: as it came.
        config: of the pool.
        request_id: unique in this process.
        prompt: what placement knows of it.
        output_tokens: that are to be planned for.
    """
    team = request.team_id
    slo = config.interactive_slo if request.tier == "interactive" else config.batch_slo
    longest = min(math.inf if slo is None else slo, request.remaining) * _POOL_SHARE
    return PoolRequest(
        id=request_id,
        prompt=prompt,
        output_tokens=output_tokens,
        team=team,
        weight=config.team_weights.get(team, 1.0),
        priority=_priority(config.team_priorities.get(team, "normal"), request.priority),
        tier=request.tier,
        slo=None if longest == math.inf else longest,
    )


def _priority(team: Priority, own: Priority) -> Priority:
    """The team's class, or the request's own where that is lower."""
    return team if team == own else max(team, own, key=BANDS.__getitem__)
