"""The batch API, as the commands call it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sluice.gateway.cli.batch_client import BatchClient
from sluice.gateway.startup_errors import CommandError


async def lines(follow: bool) -> list[bytes]:
    """What is read of a server that says something, falls silent, and says the rest when asked."""

    async def results(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sequence = int(request.query["after"]) + 1
        await response.write(b'{"sequence":%d,"id":"x"}\n{"sequ' % sequence)
        if sequence < 3:
            await asyncio.sleep(60)
        await response.write(b'ence":4}\n')
        return response

    app = web.Application()
    app.router.add_get("/v1/batch/b/results", results)
    timeout = aiohttp.ClientTimeout(sock_read=0.1)
    async with (
        TestServer(app, host="127.0.0.1") as server,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        client = BatchClient(session, f"http://127.0.0.1:{server.port}")
        return [line async for line in client.lines("b", "results", 0, follow)]


async def test_a_server_that_falls_silent_is_asked_for_the_rest() -> None:
    found = await lines(follow=True)
    whole = [b'{"sequence":%d,"id":"x"}\n' % number for number in (1, 2, 3)]
    assert found == [*whole, b'{"sequence":4}\n']


async def test_what_is_not_followed_is_not_waited_for() -> None:
    with pytest.raises(CommandError, match="can't reach"):
        await lines(follow=False)


async def test_whoever_looks_too_often_waits_as_long_as_he_is_told() -> None:
    asked = 0

    async def batch(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            return web.json_response({}, status=429, headers={"retry-after": "0"})
        return web.json_response({"batch_id": "b"})

    async def cancel(_: web.Request) -> web.Response:
        return web.json_response({}, status=429, headers={"retry-after": "0"})

    app = web.Application()
    app.router.add_get("/v1/batch/b", batch)
    app.router.add_post("/v1/batch/b/cancel", cancel)
    async with TestServer(app, host="127.0.0.1") as server, aiohttp.ClientSession() as session:
        client = BatchClient(session, f"http://127.0.0.1:{server.port}")
        assert await client.get("b") == {"batch_id": "b"}
        with pytest.raises(CommandError, match="status 429"):
            await client.cancel("b")
