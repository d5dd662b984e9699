"""Upstreams reached over HTTP with aiohttp: what the OpenAI and vLLM backends share."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from sluice import __version__
from sluice.backends.base import (
    ConnectFailed,
    ConnectionLost,
    Endpoint,
    UpstreamRequest,
    UpstreamTimeout,
)

#: Below uvicorn's 5 s, the shortest idle limit among common upstreams: a connection that the
#: other side is about to close is never picked for a request that can't be repeated.
KEEPALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach one server of the OpenAI family.

    Attributes:
        base_url: up to and including `/v1`.
        connect_seconds: limit on making a connection.
        headers: sent with every request.
        credential: the header that carries the credential, and what stands before it.
    """

    base_url: str
    connect_seconds: float = 5.0
    headers: Mapping[str, str] = field(default_factory=dict)
    credential: tuple[str, str] = ("authorization", "Bearer ")


class HTTPResponse:
    """An upstream's response over aiohttp; see `UpstreamResponse`."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self, limit: int) -> bytes:
        try:
            body = await self._response.content.read(limit + 1)
            while len(body) <= limit and not self._response.content.at_eof():
                body += await self._response.content.read(limit + 1 - len(body))
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost("the upstream's answer broke off") from error
        if len(body) > limit:
            self.close()
            raise ConnectionLost(f"the upstream's answer is longer than {limit} bytes")
        return body

    async def next(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost("the upstream's stream broke off") from error

    def close(self) -> None:
        if not self._response.closed:
            self._response.close()


class HTTPClient:
    """Sends requests to one server; opened on first use, inside the running loop."""

    def __init__(self, connection: Connection) -> None:
        base = connection.base_url.rstrip("/")
        self._urls = {endpoint: URL(f"{base}/{endpoint.value}") for endpoint in Endpoint}
        self._headers = CIMultiDict(connection.headers)
        self._headers["content-type"] = "application/json"
        self._headers["user-agent"] = f"sluice/{__version__}"
        self._credential = connection.credential
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connection.connect_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: UpstreamRequest) -> HTTPResponse:
        """Send one request; see `Backend.send`."""
        session = self._session or self._open()
        headers = self._headers.copy()
        headers["x-request-id"] = request.request_id
        headers.update(request.headers)
        if request.credential is not None:
            headers[self._credential[0]] = self._credential[1] + request.credential
        try:
            response = await session.post(
                self._urls[request.endpoint],
                data=request.body,
                headers=headers,
                allow_redirects=False,
            )
        except aiohttp.ConnectionTimeoutError as error:
            raise UpstreamTimeout("no connection to the upstream in time") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed("no connection to the upstream") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost("the upstream broke the connection") from error
        return HTTPResponse(response)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEPALIVE_SECONDS, family=socket.AF_UNSPEC
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session
