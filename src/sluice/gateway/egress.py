"""Requests that the server itself makes to a URL that somebody else chose.

Whoever may name a URL could have the server ask its own network: its metadata service, its
databases, its neighbours. So every address that a name resolves to must be public, the connection
goes to the very addresses that were checked (a name that resolves otherwise a moment later gains
nothing), and each redirect is a new URL with the same checks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from sluice import __version__
from sluice.gateway.addresses import Address, Network, is_metadata, is_public, numeric_host

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Headers that may follow to another origin.
_TRAVELLING = frozenset({"accept", "content-type", "user-agent"})


class EgressRefused(Exception):
    """The URL may not be fetched; the message says why, and nothing of what it resolves to."""


class EgressFailed(Exception):
    """The URL could not be fetched."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What may be fetched.

    Attributes:
        allow_hosts: names that may resolve to addresses that are not public; the metadata
            services of clouds remain out of reach. `*.` in front stands for any subdomain.
        allow_networks: addresses that may be reached although they are not public.
        only_hosts: where it is not empty, nothing else is fetched.
        ports: that may be connected to.
        plain_http: whether `http://` will do.
        max_redirects: that are followed.
        max_bytes: of an answer's body.
        seconds: for all of it, redirects included.
    """

    allow_hosts: tuple[str, ...] = ()
    allow_networks: tuple[Network, ...] = ()
    only_hosts: tuple[str, ...] = ()
    ports: frozenset[int] = frozenset({80, 443})
    plain_http: bool = True
    max_redirects: int = 3
    max_bytes: int = 1024 * 1024
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class EgressResponse:
    """An answer.

    Attributes:
        url: where it came from, after redirects.
        headers: by lower-case name.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: URL
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


async def system_resolve(host: str, port: int) -> list[Address]:
    """The addresses of a name, as the system resolves it.

    Raises:
        OSError: it doesn't.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


class Egress:
    """Fetches URLs within a policy."""

    def __init__(self, policy: EgressPolicy, resolve: Resolve = system_resolve) -> None:
        self._policy = policy
        self._resolve = resolve

    def check(self, url: str) -> URL:
        """A URL that may be fetched, as far as its text tells. Whether the addresses behind it
        may be reached is seen when it is fetched.

        Raises:
            EgressRefused: it may not.
        """
        return _checked_url(url, self._policy)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> EgressResponse:
        """Fetch a URL, following redirects.

        Raises:
            EgressRefused: the URL, an address behind it, or a redirect is not allowed.
            EgressFailed: no answer in time, or one that is too long, or too many redirects.
        """
        request = _Request(method, self.check(url), headers or {}, body)
        try:
            async with asyncio.timeout(self._policy.seconds):
                for _ in range(self._policy.max_redirects + 1):
                    response = await self._send(request)
                    location = response.headers.get("location")
                    if response.status not in _REDIRECTS or location is None:
                        return response
                    request = self._redirected(request, response.status, location)
        except TimeoutError:
            raise EgressFailed("no answer in time") from None
        raise EgressFailed("too many redirects")

    def _redirected(self, request: _Request, status: int, location: str) -> _Request:
        try:
            joined = request.url.join(URL(location))
        except ValueError:
            raise EgressRefused("a redirect leads to no URL") from None
        if _hidden_characters(location):
            raise EgressRefused("a redirect leads to no URL")
        url = self.check(str(joined))
        if request.url.scheme == "https" and url.scheme != "https":
            raise EgressRefused("a redirect leads from https to http")
        method, body = request.method, request.body
        if status == 303 or (status in (301, 302) and method == "POST"):
            method, body = "GET", None
        headers = request.headers
        if url.origin() != request.url.origin():
            headers = {
                name: value for name, value in headers.items() if name.lower() in _TRAVELLING
            }
        return _Request(method, url, headers, body)

    async def _send(self, request: _Request) -> EgressResponse:
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(await self._addresses(request.url)),
            use_dns_cache=False,
            force_close=True,
        )
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,  # a small answer must not become a large one
                    trust_env=False,
                ) as session,
                session.request(
                    request.method,
                    request.url,
                    data=request.body,
                    headers={
                        "user-agent": f"sluice/{__version__}",
                        "accept-encoding": "identity",
                        **request.headers,
                    },
                    allow_redirects=False,
                ) as response,
            ):
                body = await _bounded_body(response, self._policy.max_bytes)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return EgressResponse(str(request.url), response.status, headers, body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EgressFailed(f"the request failed: {type(error).__name__}") from error

    async def _addresses(self, url: URL) -> list[Address]:
        """The addresses to connect to, every one of them allowed."""
        host, port = url.raw_host or "", url.port or 0
        literal = numeric_host(host)
        if literal is not None:
            found: Sequence[Address] = [literal]
        else:
            try:
                found = await self._resolve(host, port)
            except (OSError, UnicodeError):
                raise EgressFailed("the host name does not resolve") from None
        if not found:
            raise EgressFailed("the host name does not resolve")
        trusted = _matches(host, self._policy.allow_hosts)
        for address in found:
            if not self._may_reach(address, trusted):
                raise EgressRefused("the host is at an address that is not public")
        return list(found)

    def _may_reach(self, address: Address, trusted: bool) -> bool:
        if any(
            address.version == network.version and address in network
            for network in self._policy.allow_networks
        ):
            return True
        return is_public(address) or (trusted and not is_metadata(address))


class _Pinned(AbstractResolver):
    """Resolves to addresses that were checked, and to nothing else."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def _bounded_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limit:
            raise EgressFailed(f"the answer is longer than {limit} bytes")
    return bytes(body)


def _checked_url(text: str, policy: EgressPolicy) -> URL:
    if _hidden_characters(text):
        raise EgressRefused("the URL has characters that no URL has")
    try:
        url = URL(text)
        host, port = url.raw_host, url.port
    except ValueError:
        raise EgressRefused("this is no URL") from None
    if url.scheme not in (("http", "https") if policy.plain_http else ("https",)):
        raise EgressRefused("the URL must begin with https://")
    if "@" in re.split("[/?#]", text.partition("://")[2])[0]:
        raise EgressRefused("the URL must not hold credentials")
    if not host or "%" in host:
        raise EgressRefused("the URL's host is not valid")
    if port not in policy.ports:
        raise EgressRefused(f"port {port} may not be connected to")
    try:
        numeric_host(host)
    except ValueError:
        raise EgressRefused("the URL's host is an address in an unusual spelling") from None
    if policy.only_hosts and not _matches(host, policy.only_hosts):
        raise EgressRefused("the host is not among those that may be reached")
    return url.with_fragment(None)


def _hidden_characters(text: str) -> bool:
    """Whether parsers may disagree on a text: it has blanks, controls or backslashes."""
    return any(character <= " " or character in "\\\x7f" for character in text)


def _matches(host: str, patterns: Sequence[str]) -> bool:
    name = host.lower().rstrip(".")
    for pattern in patterns:
        wanted = pattern.lower()
        if name == wanted or (wanted.startswith("*.") and name.endswith(wanted[1:])):
            return True
    return False
