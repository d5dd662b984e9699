"""The batch API, as the commands call it with a team's key: the gateway at SLUICE_URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from sluice.gateway.cli.admin_api import error_message
from sluice.gateway.environment import Environment
from sluice.gateway.startup_errors import CommandError

#: Of an input file, read at a time.
_CHUNK_BYTES = 256 * 1024

#: Uploads and downloads take as long as they take; a server that says nothing does not.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)

#: What is read ahead; half of the longest line of results.
_LINE_BYTES = 32 * 1024 * 1024


class _Numbered(msgspec.Struct):
    """A line of results."""

    sequence: int


class BatchClient:
    """Calls `/v1/batch` and `/v1/files`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def submit(self, file: Path, options: Mapping[str, str]) -> dict[str, Any]:
        """Submit a file's requests; gives the batch.

        Raises:
            CommandError: it can't be read, the gateway can't be reached, or it refused.
        """
        form = aiohttp.FormData()
        for name, value in options.items():
            form.add_field(name, value)
        try:
            with file.open("rb") as content:
                form.add_field("file", content, filename=file.name)
                return await self._json("POST", "/v1/batch", data=form)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from None

    async def get(self, batch_id: str) -> dict[str, Any]:
        """How a batch is doing.

        Raises:
            CommandError: see `submit`.
        """
        return await self._json("GET", f"/v1/batch/{batch_id}")

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        """Stop a batch.

        Raises:
            CommandError: see `submit`.
        """
        return await self._json("POST", f"/v1/batch/{batch_id}/cancel")

    async def lines(
        self, batch_id: str, kind: str, after: int, follow: bool
    ) -> AsyncIterator[bytes]:
        """Lines of a batch's outcome. A server that has said nothing for long is asked for the rest
        where a batch is followed: it may have nothing to say.

        Args:
            kind: `results` or `errors`.
            after: number of the last line that is known.
            follow: go on until the batch has ended.

        Raises:
            CommandError: see `submit`; also when the connection breaks.
        """
        path = f"/v1/batch/{batch_id}/{kind}"
        query = {"after": str(after), "follow": "true" if follow else "false"}
        while True:
            async with self._answer("GET", path, params=query) as response:
                try:
                    async for line in response.content:
                        query["after"] = str(msgspec.json.decode(line, type=_Numbered).sequence)
                        yield line
                    return
                except aiohttp.SocketTimeoutError:
                    if not follow:
                        raise

    async def _json(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        async with self._answer(method, path, **given) as response:
            try:
                answer: dict[str, Any] = msgspec.json.decode(await response.read())
            except msgspec.DecodeError:
                raise CommandError("the answer is not a gateway's; is SLUICE_URL right?") from None
            return answer

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, **given: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        wait: float | None = 0.0
        try:
            while wait is not None:
                await asyncio.sleep(wait)
                async with self._session.request(method, self._url + path, **given) as response:
                    wait = _wait(response)
                    if wait is None:
                        await _check(response)
                        yield response
        except aiohttp.ClientError as error:
            raise CommandError(f"can't reach {self._url}: {error}") from None


def _wait(response: aiohttp.ClientResponse) -> float | None:
    """Seconds after which a question that came too often may be asked again; None: it was not one.
    What changes something is not asked twice."""
    seconds = response.headers.get("retry-after", "")
    if response.method == "GET" and response.status == 429 and seconds.isdecimal():
        return float(seconds)
    return None


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises:
    CommandError: the gateway refused.
    """
    if response.status >= 400:
        text = await response.read()
        fallback = f"the gateway answered with status {response.status}"
        raise CommandError(error_message(text) or fallback)


@asynccontextmanager
async def batch_client(key: str) -> AsyncIterator[BatchClient]:
    """A client with a team's key."""
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(
        headers=headers, timeout=_TIMEOUT, read_bufsize=_LINE_BYTES
    ) as session:
        yield BatchClient(session, Environment.read().url)
