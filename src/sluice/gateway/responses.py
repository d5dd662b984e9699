"""Stored responses: what `previous_response_id` and `GET /v1/responses/{id}` refer to.

Kept in Redis, under the team that made them, for a retention time; a conversation is the chain of
its responses, read in one round trip. A response of another team does not exist.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from redis.exceptions import RedisError

from sluice.billing.redis_link import RedisLink

#: Longest chain that is followed.
MAX_TURNS = 500

#: From the newest back to the first; nil when a link is missing.
_CHAIN = """
local turns = {}
local id = ARGV[2]
while id and id ~= '' do
    local turn = redis.call('HMGET', ARGV[1] .. id, 'turn', 'previous')
    if not turn[1] then return nil end
    table.insert(turns, 1, turn[1])
    if #turns > tonumber(ARGV[3]) then return nil end
    id = turn[2]
end
return turns
"""


class StoreAway(Exception):
    """Stored responses can't be reached now."""


class Turn(msgspec.Struct):
    """One stored response.

    Attributes:
        response: the Response object as the client got it.
        input: the request's own input items.
        provider: whose upstream holds the response too, under the same id; empty where only we do.
        conversation: what stands for its conversation in routing (`Conversation.key`), or empty.
    """

    response: dict[str, Any]
    input: list[dict[str, Any]]
    provider: str = ""
    conversation: bytes = b""

    def items(self) -> list[dict[str, Any]]:
        """What this turn adds to the conversation."""
        return [*self.input, *self.response.get("output", [])]


class ResponseStore:
    """Saves and finds responses; see the module."""

    def __init__(self, link: RedisLink, retention_seconds: int, timeout: float = 2.0) -> None:
        """Args:
        link: to Redis; kept connected by somebody else.
        retention_seconds: how long a response is kept.
        timeout: seconds for a round trip.
        """
        self._link = link
        self._retention_seconds = retention_seconds
        self._timeout = timeout

    async def save(self, team_id: str, turn: Turn, previous: str | None) -> None:
        """Keep a response, under its own id.

        Raises:
            StoreAway: it could not be kept.
        """
        key = _prefix(team_id) + str(turn.response["id"])
        text = msgspec.json.encode(turn)
        await self._ask("HSET", key, "turn", text, "previous", previous or "")
        await self._ask("EXPIRE", key, str(self._retention_seconds))

    async def get(self, team_id: str, response_id: str) -> Turn | None:
        """A team's response; None where there is none.

        Raises:
            StoreAway: see there.
        """
        text = await self._ask("HGET", _prefix(team_id) + response_id, "turn")
        return None if text is None else msgspec.json.decode(text, type=Turn)

    async def chain(self, team_id: str, response_id: str) -> list[Turn] | None:
        """The conversation that ends in a response, oldest turn first; None where any is missing.

        Raises:
            StoreAway: see there.
        """
        turns = await self._ask("EVAL", _CHAIN, "0", _prefix(team_id), response_id, str(MAX_TURNS))
        if turns is None:
            return None
        return [msgspec.json.decode(text, type=Turn) for text in turns]

    async def delete(self, team_id: str, response_id: str) -> bool:
        """Forget a response; whether there was one.

        Raises:
            StoreAway: see there.
        """
        return bool(await self._ask("DEL", _prefix(team_id) + response_id))

    async def _ask(self, *command: bytes | str) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._link.send(*command)
        except (RedisError, TimeoutError) as error:
            raise StoreAway(str(error)) from error


def _prefix(team_id: str) -> str:
    return f"sluice:response:{team_id}:"
