"""The scripts by which claims and tapes change in Redis: each one step, seen by all or by nobody.

Three keys and an index; times are milliseconds of Redis's own clock, so that no gateway's clock
matters:

- the entry, a hash at `sluice:idempotency:{name}`: `print`, `owner`, `state` (`running`, `done`),
  `large` once the answer has outgrown its tape;
- the tape of a generation, a hash at `sluice:idempotency:tape:{owner}`: `state` (`running`, `done`,
  `failed`, `lost`), `head`, `length`, `large`, `seen` (when another gateway last listened),
  `event` (what to charge should its gateway be lost), `entry`;
- its bytes, a string at `sluice:idempotency:bytes:{owner}`;
- `sluice:idempotency:leases`, a sorted set of owners by the time when their leases run out.

An entry outlives its answer for the retention time. The tape of a generation that failed has no
entry any more, and stays for those who listen.
"""

from __future__ import annotations

import hashlib
from typing import Any

from redis.exceptions import RedisError

from sluice.billing.redis_link import RedisLink

PREFIX = "sluice:idempotency:"
TAPE = PREFIX + "tape:"
BYTES = PREFIX + "bytes:"
LEASES = PREFIX + "leases"

_CLOCK = """
local function now()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""

#: Put bytes at their place on the tape; done already where a reply was lost. Whether they fit.
_PUT = """
local function put(key, offset, bytes)
    local length = redis.call('STRLEN', key)
    if length == offset then
        if #bytes > 0 then redis.call('APPEND', key, bytes) end
        return true
    end
    return length == offset + #bytes
end
"""


class Script:
    """A script by its hash, and by its text where Redis does not know it yet."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._hash = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, link: RedisLink, keys: list[str], *arguments: bytes | str) -> Any:
        """Run it.

        Raises:
            RedisError: by the link, or by the script.
        """
        rest = (str(len(keys)), *keys, *arguments)
        try:
            return await link.send("EVALSHA", self._hash, *rest)
        except RedisError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return await link.send("EVAL", self._text, *rest)


#: Keys: entry, tape, leases. Arguments: fingerprint, owner, lease, how long to keep what runs,
#: prefixes of tapes and of bytes. Gives what was found and whose it is.
CLAIM = Script(
    _CLOCK
    + """
local print, owner, lease, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local found = redis.call('HMGET', KEYS[1], 'print', 'owner', 'state', 'large')
local holder = found[2]
if holder then
    local due = redis.call('ZSCORE', KEYS[3], holder)
    local orphan = found[3] == 'running' and (not due or tonumber(due) <= now())
    if not orphan then
        if found[1] ~= print then return {'reused', holder} end
        if found[4] then return {'large', holder} end
        if found[3] == 'done' then
            local length = redis.call('HGET', ARGV[5] .. holder, 'length')
            if tonumber(length or -1) ~= redis.call('STRLEN', ARGV[6] .. holder) then
                return {'large', holder}
            end
        end
        return {found[3], holder}
    end
    if redis.call('EXISTS', ARGV[5] .. holder) == 1 then
        redis.call('HSET', ARGV[5] .. holder, 'state', 'lost')
    end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'print', print, 'owner', owner, 'state', 'running')
redis.call('PEXPIRE', KEYS[1], keep)
redis.call('HSET', KEYS[2], 'state', 'running', 'entry', KEYS[1])
redis.call('PEXPIRE', KEYS[2], keep)
redis.call('ZADD', KEYS[3], now() + lease, owner)
return {'claimed', owner}
"""
)

#: Keys: entry, tape, bytes, leases. Arguments: owner, offset, bytes, head or empty, event or empty,
#: `1` where the answer has outgrown the tape, lease, how long to keep it. 0: no longer the owner.
APPEND = Script(
    _CLOCK
    + _PUT
    + """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[2], 'state') ~= 'running' then return 0 end
local offset, bytes = tonumber(ARGV[2]), ARGV[3]
if not put(KEYS[3], offset, bytes) then return 0 end
redis.call('PEXPIRE', KEYS[3], ARGV[8])
redis.call('HSET', KEYS[2], 'length', offset + #bytes)
if #ARGV[4] > 0 then redis.call('HSET', KEYS[2], 'head', ARGV[4]) end
if #ARGV[5] > 0 then redis.call('HSET', KEYS[2], 'event', ARGV[5]) end
if ARGV[6] == '1' then
    redis.call('HSET', KEYS[1], 'large', 1)
    redis.call('HSET', KEYS[2], 'large', 1)
end
redis.call('ZADD', KEYS[4], now() + tonumber(ARGV[7]), ARGV[1])
return 1
"""
)

#: Keys: entry, tape, leases. Arguments: owner, lease. Gives how long ago somebody on another
#: gateway listened; -1: never, -2: no longer the owner.
RENEW = Script(
    _CLOCK
    + """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return -2 end
if redis.call('HGET', KEYS[2], 'state') ~= 'running' then return -2 end
local time = now()
redis.call('ZADD', KEYS[3], time + tonumber(ARGV[2]), ARGV[1])
local seen = redis.call('HGET', KEYS[2], 'seen')
if not seen then return -1 end
return math.max(0, time - tonumber(seen))
"""
)

#: Keys: entry, tape, bytes, leases. Arguments: owner, offset, bytes, head or empty, `1` where the
#: answer has outgrown the tape, retention, linger. The last bytes and the end are one step. 0: no
#: longer the owner.
FINISH = Script(
    _PUT
    + """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
local state = redis.call('HGET', KEYS[2], 'state')
if state == 'done' then return 1 end
if state ~= 'running' then return 0 end
local offset, bytes = tonumber(ARGV[2]), ARGV[3]
if not put(KEYS[3], offset, bytes) then return 0 end
redis.call('HSET', KEYS[1], 'state', 'done')
redis.call('HSET', KEYS[2], 'state', 'done', 'length', offset + #bytes)
if #ARGV[4] > 0 then redis.call('HSET', KEYS[2], 'head', ARGV[4]) end
redis.call('HDEL', KEYS[2], 'event')
local keep = ARGV[6]
if ARGV[5] == '1' then
    redis.call('HSET', KEYS[1], 'large', 1)
    redis.call('HSET', KEYS[2], 'large', 1)
    keep = ARGV[7]
end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], keep)
redis.call('PEXPIRE', KEYS[3], keep)
redis.call('ZREM', KEYS[4], ARGV[1])
return 1
"""
)

#: Keys: entry, tape, bytes, leases. Arguments: owner, offset, bytes, head or empty, the tape's
#: state, linger. The key is free from now on. What was found to be lost already stays so: it is
#: the sweeper's.
FREE = Script(
    _PUT
    + """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then redis.call('DEL', KEYS[1]) end
if redis.call('HGET', KEYS[2], 'state') ~= 'running' then return 0 end
local offset, bytes = tonumber(ARGV[2]), ARGV[3]
local state = ARGV[5]
if put(KEYS[3], offset, bytes) then
    redis.call('HSET', KEYS[2], 'length', offset + #bytes)
else
    state = 'lost'
end
if #ARGV[4] > 0 then redis.call('HSET', KEYS[2], 'head', ARGV[4]) end
redis.call('HSET', KEYS[2], 'state', state)
redis.call('HDEL', KEYS[2], 'event')
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('ZREM', KEYS[4], ARGV[1])
return 1
"""
)

#: Keys: tape, bytes. Arguments: offset, how many bytes at most, `1` to be seen listening. Gives
#: state, head, length, whether it was outgrown, bytes; nil where there is no tape.
VIEW = Script(
    _CLOCK
    + """
local tape = redis.call('HMGET', KEYS[1], 'state', 'head', 'length', 'large')
if not tape[1] then return nil end
if ARGV[3] == '1' and tape[1] == 'running' then redis.call('HSET', KEYS[1], 'seen', now()) end
local first = tonumber(ARGV[1])
local bytes = redis.call('GETRANGE', KEYS[2], first, first + tonumber(ARGV[2]) - 1)
return {tape[1], tape[2] or '', tonumber(tape[3] or 0), tape[4] and 1 or 0, bytes}
"""
)

#: Keys: leases. Arguments: lease, how many at most, prefix of tapes. Frees the keys of generations
#: whose leases have run out, and gives each owner with what to charge. Who asked has one lease
#: to do so; then the next who asks gets them.
REAP = Script(
    _CLOCK
    + """
local time = now()
local found = {}
local owners = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time, 'LIMIT', 0, ARGV[2])
for _, owner in ipairs(owners) do
    local tape = ARGV[3] .. owner
    redis.call('ZADD', KEYS[1], time + tonumber(ARGV[1]), owner)
    local entry = redis.call('HGET', tape, 'entry')
    if entry then
        redis.call('HSET', tape, 'state', 'lost')
        if redis.call('HGET', entry, 'owner') == owner then redis.call('DEL', entry) end
    end
    table.insert(found, owner)
    table.insert(found, redis.call('HGET', tape, 'event') or '')
end
return found
"""
)

#: Keys: leases, tape, bytes. Arguments: owner, linger. What was to be charged has been.
BURY = Script(
    """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], 'event')
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
"""
)
