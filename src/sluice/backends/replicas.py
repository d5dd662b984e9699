"""Replicas that come and go: what a worker announces of its engine, and where gateways read it.

One hash a pool in Redis: field, the replica's id; value, its announcement with the time of its last
beat, by Redis's clock, so that no machine's clock matters. A worker beats twice a second; readers
see only those who beat within the lease, so that a replica whose worker died takes no request two
seconds later.

While Redis is away nobody can beat. A reader that comes back with it must not take the silence for
death: it was in touch for less than a lease, and goes on with what it knew.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

#: Seconds between two beats of a worker.
BEAT_SECONDS = 0.5

#: A replica that is silent for longer takes no requests.
LEASE_SECONDS = 1.5

#: Seconds after which a silent replica is removed from Redis altogether.
FORGET_SECONDS = 3600

ReplicaState = Literal["joining", "ready", "draining"]
Stage = Literal["prod", "canary", "shadow"]


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine can hold; None: not known, or no limit of its own.

    Attributes:
        kv_blocks: blocks of its KV cache.
        block_size: tokens in one of them.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens that one step computes.
        max_queued_requests: requests that may wait in it; more are refused.
        max_queued_tokens: prompt tokens that may wait in it.
        context_length: tokens of one prompt and its output together.
        priority: whether it schedules by priority; where not, requests must name none.
    """

    kv_blocks: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    context_length: int | None = None
    priority: bool = False


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy an engine is.

    Attributes:
        running: requests in its batch.
        waiting: requests in its queue.
        kv_usage: share of its KV cache in use, 0 to 1.
        gpu_memory_used: bytes, of all its GPUs; None: it has none, or they can't be asked.
        gpu_memory_total: the same.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    gpu_memory_used: int | None = None
    gpu_memory_total: int | None = None


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica, as its worker describes it.

    Attributes:
        id: of this run of the worker, a UUIDv7; the same over restarts of the engine.
        pool: the pool that it belongs to.
        url: the engine's address for gateways, without `/v1`.
        model: the name that the engine serves the model under.
        version: the model's version in the registry.
        state: `joining` until the engine answers, and again while it restarts.
        since: when the worker began, seconds since the epoch.
        stage: the version's when the worker began; what is routed where is the registry's to say.
        problem: why it is not ready, for operators.
        restarts: how often the engine was started again.
    """

    id: str
    pool: str
    url: str
    model: str
    version: str
    state: ReplicaState
    since: float
    stage: Stage | None = None
    limits: EngineLimits = EngineLimits()
    load: EngineLoad = EngineLoad()
    problem: str | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """An announcement, and how old it is.

    Attributes:
        age: seconds since the beat that brought it.
    """

    announcement: Announcement
    age: float


class SendCommand(Protocol):
    """Sends one Redis command and gives its reply: `RedisLink.send`, `Redis.execute_command`."""

    def __call__(self, *command: Any) -> Awaitable[Any]: ...


_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# ARGV: the replica's id, its announcement, after how many ms of silence anyone is forgotten. The
# forgotten are looked for by those who join, not at every beat.
_BEAT = (
    _NOW
    + """
if redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2]) == 1 then
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
        if now - tonumber(string.match(all[i + 1], '^%d+')) > tonumber(ARGV[3]) then
            redis.call('HDEL', KEYS[1], all[i])
        end
    end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return now
"""
)

# ARGV: the lease in ms. Gives pairs of age in ms and announcement.
_READ = (
    _NOW
    + """
local live = {}
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
    local at, announcement = string.match(value, '^(%d+) (.*)$')
    local age = math.max(0, now - tonumber(at))
    if age <= tonumber(ARGV[1]) then
        live[#live + 1] = age
        live[#live + 1] = announcement
    end
end
return live
"""
)


class Replicas:
    """The announcements of all pools, in Redis."""

    def __init__(self, send: SendCommand, lease_seconds: float = LEASE_SECONDS) -> None:
        """Args:
        send: the connection; its errors come through.
        lease_seconds: see `LEASE_SECONDS`.
        """
        self._send = send
        self._lease_ms = int(lease_seconds * 1000)

    async def beat(self, announcement: Announcement) -> None:
        """Announce a replica, or renew its lease with news.

        Raises:
            RedisError: Redis is away, or refused.
        """
        text = msgspec.json.encode(announcement)
        key, forget = _key(announcement.pool), str(FORGET_SECONDS * 1000)
        await self._send("EVAL", _BEAT, "1", key, announcement.id, text, forget)

    async def live(self, pool: str) -> list[Heard]:
        """The replicas of a pool that were heard within the lease, whatever their state.

        Announcements that this release can't read, of workers of another one, are left out.

        Raises:
            RedisError: Redis is away, or refused.
        """
        reply = await self._send("EVAL", _READ, "1", _key(pool), str(self._lease_ms))
        heard = []
        for age, text in zip(reply[::2], reply[1::2], strict=True):
            try:
                announcement = msgspec.json.decode(text, type=Announcement)
            except msgspec.MsgspecError:
                continue
            heard.append(Heard(announcement, int(age) / 1000))
        return sorted(heard, key=lambda each: each.announcement.id)

    async def leave(self, pool: str, replica_id: str) -> None:
        """Remove a replica at once.

        Raises:
            RedisError: Redis is away, or refused.
        """
        await self._send("HDEL", _key(pool), replica_id)


def _key(pool: str) -> str:
    return f"sluice:pool:{pool}:replicas"
