"""Tapes: the answers of requests with a key, and who may write them, kept in Redis.

A tape has exactly one writer, its owner: the generation that holds the key by a lease which it
renews. A writer whose lease ran out and whose key was given away finds out by its next write.
Anybody may read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
from redis.exceptions import RedisError

from sluice.billing.redis_link import RedisLink
from sluice.gateway.idempotency import scripts
from sluice.gateway.idempotency.scripts import BYTES, LEASES, PREFIX, TAPE, Script

#: How long a tape without a key is kept for those who still listen, in milliseconds.
LINGER_MS = 60_000

#: What runs, and what is to be charged for a gateway that was lost, is kept for this long at least,
#: in milliseconds.
ORPHAN_MS = 24 * 3_600_000

#: Most that is read at a time, in bytes.
PAGE_BYTES = 64 * 1024

#: Lost generations that one process charges at a time.
REAPED_AT_ONCE = 100

State = Literal["running", "done", "failed", "lost"]
Finding = Literal["claimed", "reused", "running", "done", "large"]


class TapesAway(Exception):
    """Redis can't be reached, or refuses to work."""


class TapeLost(Exception):
    """The tape is somebody else's by now, or gone."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of an answer."""

    status: int
    headers: list[tuple[str, str]]

    @classmethod
    def of(cls, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        """Of an ASGI message."""
        texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        return cls(status, texts)


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish to generate.

    Attributes:
        name: of the key, see `key.entry_name`.
        fingerprint: of the request.
        owner: the request's id; names the tape too.
    """

    name: str
    fingerprint: str
    owner: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a claim found, and whose tape has the answer."""

    finding: Finding
    owner: str


@dataclass(frozen=True, slots=True)
class View:
    """A tape as it is now, with the bytes from where the reader was."""

    state: State
    head: Head | None
    length: int
    large: bool
    part: bytes


@dataclass(frozen=True, slots=True)
class Group:
    """What is put on a tape at once.

    Attributes:
        offset: of its bytes on the tape.
        head: the answer's, once.
        event: the usage event that is due if nothing follows; empty while nothing is.
        large: the answer has outgrown the tape; its bytes are not kept.
    """

    offset: int
    part: bytes
    head: Head | None
    event: bytes = b""
    large: bool = False


class Tapes:
    """Claims keys, writes and reads tapes; every method raises `TapesAway`. See the module."""

    def __init__(
        self, link: RedisLink, lease_seconds: float, retention_seconds: float, timeout: float = 2.0
    ) -> None:
        """Args:
        link: to Redis; kept connected by somebody else.
        lease_seconds: how long a key is held by an owner that says nothing.
        retention_seconds: how long a finished answer is kept.
        timeout: seconds for a round trip.
        """
        self._link = link
        self._timeout = timeout
        self._lease = _ms(lease_seconds)
        self._retention = _ms(retention_seconds)
        self._keep = str(max(int(self._retention), ORPHAN_MS))

    async def claim(self, claim: Claim) -> Held:
        """Get the right to generate, or learn who has it."""
        keys = [PREFIX + claim.name, TAPE + claim.owner, LEASES]
        finding, owner = await self._run(
            scripts.CLAIM,
            keys,
            *(claim.fingerprint, claim.owner, self._lease, self._keep, TAPE, BYTES),
        )
        return Held(cast("Finding", finding.decode()), owner.decode())

    async def append(self, claim: Claim, group: Group) -> None:
        """Put a group on the tape, and renew the lease. May be repeated.

        Raises:
            TapeLost: see there.
        """
        reply = await self._run(
            scripts.APPEND,
            _keys(claim),
            *(claim.owner, str(group.offset), group.part, _text(group.head), group.event),
            *(_flag(group.large), self._lease, self._keep),
        )
        if not reply:
            raise TapeLost

    async def renew(self, claim: Claim) -> float | None:
        """Renew the lease; gives the seconds since somebody on another gateway listened.

        Raises:
            TapeLost: see there.
        """
        keys = [PREFIX + claim.name, TAPE + claim.owner, LEASES]
        reply = await self._run(scripts.RENEW, keys, claim.owner, self._lease)
        if reply == -2:
            raise TapeLost
        return None if reply < 0 else reply / 1000

    async def finish(self, claim: Claim, group: Group) -> None:
        """Put the last group on the tape, and the answer's end: from now on it is replayed.

        Raises:
            TapeLost: see there.
        """
        reply = await self._run(
            scripts.FINISH,
            _keys(claim),
            *(claim.owner, str(group.offset), group.part, _text(group.head), _flag(group.large)),
            *(self._retention, str(LINGER_MS)),
        )
        if not reply:
            raise TapeLost

    async def free(self, claim: Claim, group: Group, state: State) -> None:
        """Give the key back; what failed is not kept but for those who listen."""
        await self._run(
            scripts.FREE,
            _keys(claim),
            *(claim.owner, str(group.offset), group.part, _text(group.head), state),
            str(LINGER_MS),
        )

    async def view(self, owner: str, offset: int, listening: bool) -> View | None:
        """Look at a tape; None where there is none.

        Args:
            owner: whose.
            offset: from where its bytes are wanted.
            listening: let the owner know that somebody does.
        """
        reply = await self._run(
            scripts.VIEW,
            [TAPE + owner, BYTES + owner],
            *(str(offset), str(PAGE_BYTES), _flag(listening)),
        )
        if reply is None:
            return None
        state, head, length, large, part = reply
        found = msgspec.json.decode(head, type=Head) if head else None
        return View(cast("State", state.decode()), found, length, bool(large), part)

    async def read(self, owner: str, offset: int) -> bytes:
        """The bytes of a tape from an offset on, as far as one page goes."""
        end = str(offset + PAGE_BYTES - 1)
        reading = self._link.send("GETRANGE", BYTES + owner, str(offset), end)
        part: bytes = await self._ask(reading)
        return part

    async def reap(self) -> Mapping[str, bytes]:
        """Free the keys of lost generations; gives each owner with the event that is due, or
        nothing. They are this process's for one lease: charge them, then `bury`."""
        reply = await self._run(scripts.REAP, [LEASES], self._lease, str(REAPED_AT_ONCE), TAPE)
        return {owner.decode(): event for owner, event in zip(reply[::2], reply[1::2], strict=True)}

    async def bury(self, owner: str) -> None:
        """A lost generation has been charged."""
        keys = [LEASES, TAPE + owner, BYTES + owner]
        await self._run(scripts.BURY, keys, owner, str(LINGER_MS))

    async def _run(self, script: Script, keys: list[str], *arguments: bytes | str) -> Any:
        return await self._ask(script.run(self._link, keys, *arguments))

    async def _ask(self, question: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await question
        except (RedisError, TimeoutError) as error:
            raise TapesAway(str(error)) from error


def _keys(claim: Claim) -> list[str]:
    return [PREFIX + claim.name, TAPE + claim.owner, BYTES + claim.owner, LEASES]


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _text(head: Head | None) -> bytes:
    return b"" if head is None else msgspec.json.encode(head)
