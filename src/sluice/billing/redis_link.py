"""A connection to Redis for the request path: pipelined, and written to at once.

The general client borrows a connection for each command, awaits the write, awaits the reply and
returns the connection; at one request's scale that costs as much as the rest of the path. Here a
command is on its way when `send` returns, any number may be, and replies come in order. Everything
off the path uses the general client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, cast

import hiredis
from redis.asyncio.connection import parse_url
from redis.exceptions import RedisError


class LinkDown(RedisError):
    """There is no connection, or it was lost before the reply: the command may have run."""


class RedisLink:
    """One connection; not reconnected by itself, see `connect`."""

    def __init__(self, url: str, connect_timeout: float = 1.0) -> None:
        """Args:
        url: as the general client takes it: `redis://`, `rediss://` or `unix://`.
        connect_timeout: seconds for connecting, authentication included.

        Raises:
            ValueError: the URL is none that Redis has.
        """
        self._where = parse_url(url)
        self._tls = url.startswith("rediss:")
        self._connect_timeout = connect_timeout
        self._protocol: _Replies | None = None

    @property
    def up(self) -> bool:
        """Whether commands can be sent now."""
        return self._protocol is not None and self._protocol.up

    async def connect(self) -> None:
        """Connect, unless connected.

        Raises:
            RedisError, OSError, TimeoutError: it can't be reached, or it refuses us. A server
                that is still loading its data counts as one that can't be reached.
        """
        if self.up:
            return
        async with asyncio.timeout(self._connect_timeout):
            protocol = await self._open()
            try:
                for command in self._greeting():
                    await protocol.send(command)
            except BaseException:
                protocol.drop()
                raise
        self._protocol = protocol

    def send(self, *command: bytes | str) -> asyncio.Future[Any]:
        """Send a command; the future gives its reply, an error reply as an exception.

        Raises, by the future:
            LinkDown: see there.
            RedisError: Redis refused the command.
        """
        if self._protocol is None or not self._protocol.up:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(LinkDown("not connected"))
            return future
        return self._protocol.send(command)

    def drop(self) -> None:
        """Close the connection; what was under way fails with `LinkDown`."""
        if self._protocol is not None:
            self._protocol.drop()
            self._protocol = None

    async def _open(self) -> _Replies:
        loop = asyncio.get_running_loop()
        where = self._where
        if "path" in where:
            _, protocol = await loop.create_unix_connection(_Replies, where["path"])
            return protocol
        host, port = where.get("host", "localhost"), int(where.get("port", 6379))
        context = ssl.create_default_context() if self._tls else None
        _, protocol = await loop.create_connection(_Replies, host, port, ssl=context)
        return protocol

    def _greeting(self) -> list[tuple[bytes | str, ...]]:
        """Authentication, the database, and a command that a loading server refuses."""
        where = self._where
        greeting: list[tuple[bytes | str, ...]] = []
        if password := where.get("password"):
            username = where.get("username")
            greeting.append(("AUTH", username, password) if username else ("AUTH", password))
        if database := where.get("db"):
            greeting.append(("SELECT", str(database)))
        return [*greeting, ("PING",)]


class _Replies(asyncio.Protocol):
    """Matches replies to commands, in order."""

    def __init__(self) -> None:
        self.up = False
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def send(self, command: tuple[bytes | str, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or not self.up or self._transport.is_closing():
            future.set_exception(LinkDown("the connection was lost"))
            return future
        try:
            self._transport.write(hiredis.pack_command(cast("Any", command)))
        except RuntimeError:  # uvloop's word for a connection that the other side has reset
            self.drop()
            future.set_exception(LinkDown("the connection was lost"))
        else:
            self._waiting.append(future)
        return future

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's, by construction
        self.up = True

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while self._waiting:
            try:
                reply = self._reader.gets()
            except hiredis.ProtocolError:
                self.drop()
                return
            if reply is False:
                return
            future = self._waiting.popleft()
            if future.done():  # nobody waits any more
                continue
            if isinstance(reply, hiredis.ReplyError):
                future.set_exception(RedisError(str(reply)))
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        self.up = False
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(LinkDown("the connection was lost"))
