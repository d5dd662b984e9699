"""Asks an engine how it is."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from sluice.backends.worker.metrics import NotMetrics, Reading, read_metrics

#: Before all requests of tenants, whose priorities begin at 0; only where there are priorities.
PROBE_PRIORITY = -1_000_000


class EngineSilent(Exception):
    """The engine gave no answer that is of use; it may yet."""


class EngineDead(Exception):
    """The engine's server says that the engine behind it is gone for good."""


class EngineClient:
    """The engine at one address."""

    def __init__(self, url: str, model: str, *, embeds: bool, priorities: bool) -> None:
        """Args:
        url: without `/v1`.
        model: the name that it serves.
        embeds: it embeds; otherwise it generates.
        priorities: requests may have one.
        """
        self._url = url
        self._path, body = "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1}
        if embeds:
            self._path, body = "/v1/embeddings", {"model": model, "input": "a"}
        if priorities:
            body["priority"] = PROBE_PRIORITY
        self._body = msgspec.json.encode(body)
        # A connection that stands open belongs to an engine that may have been replaced since.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def close(self) -> None:
        """Release connections."""
        await self._session.close()

    async def reading(self, seconds: float) -> Reading:
        """Its metrics.

        Raises:
            EngineSilent: none within so many seconds.
        """
        status, body = await self._ask("GET", "/metrics", None, seconds)
        if status != 200:
            raise EngineSilent(f"its metrics have status {status}")
        try:
            return read_metrics(body.decode("utf-8", "replace"))
        except NotMetrics as error:
            raise EngineSilent(str(error)) from None

    async def probe(self, seconds: float) -> None:
        """Make it compute one token.

        Raises:
            EngineSilent: it did not, within so many seconds.
            EngineDead: it can't any more.
        """
        status, _ = await self._ask("GET", "/health", None, seconds)
        if status == 503:
            raise EngineDead("its health check says that the engine is dead")
        if status != 200:
            raise EngineSilent(f"its health check has status {status}")
        status, _ = await self._ask("POST", self._path, self._body, seconds)
        if status != 200:
            raise EngineSilent(f"a request for one token has status {status}")

    async def _ask(
        self, method: str, path: str, body: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method, self._url + path, data=body, headers=headers
                ) as response,
            ):
                return response.status, await response.read()
        except TimeoutError:
            raise EngineSilent(f"no answer to {path} within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineSilent(f"no answer to {path}: {type(error).__name__}") from None
