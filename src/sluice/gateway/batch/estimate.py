"""When a batch will be done, as far as one can tell. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta


def estimated_completion(
    *,
    now: datetime,
    started_at: datetime,
    expires_at: datetime,
    done: int,
    left: int,
    ahead: int,
    usual_rate: float | None,
) -> datetime:
    """When the last request will be done, and no later than the window closes.

    Args:
        done: requests of the batch so far; their pace is the best evidence, once there are any.
        left: requests of the batch.
        ahead: requests of other batches that are waiting, too.
        usual_rate: requests a second that batches were done with of late; None: unknown.
    """
    elapsed = (now - started_at).total_seconds()
    if done and elapsed > 0:
        seconds = left * elapsed / done
    elif usual_rate:
        seconds = (left + ahead) / usual_rate
    else:
        return expires_at
    return min(now + timedelta(seconds=min(seconds, 10**7)), expires_at)
