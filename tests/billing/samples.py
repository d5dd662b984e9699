"""Usage events to store, and a redis client for the usage stream."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import uuid_utils
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluice.billing.events import UsageEvent

TEAM = UUID(int=1)
OTHER_TEAM = UUID(int=2)
KEY = UUID(int=11)
NOON = int(datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp() * 1e6)

_numbers = itertools.count()


def usage_event(**changes: Any) -> UsageEvent:
    """An event like any other, but for what is given."""
    values: dict[str, Any] = {
        "request_id": str(uuid_utils.uuid7()),
        "time_us": NOON + next(_numbers),
        "team_id": str(TEAM),
        "key_id": str(KEY),
        "endpoint": "chat/completions",
        "model": "m",
        "model_used": "m",
        "deployment": "p/m",
        "tier": "interactive",
        "status": "ok",
        "input_tokens": 10,
        "output_tokens": 5,
        "cost_nano_usd": 100,
        "latency_us": 1500,
        "attempts": 1,
    }
    return UsageEvent(**{**values, **changes})


def client(url: str) -> Redis:
    """A client that gives up at once, so that tests see what the code under test does."""
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=1)
