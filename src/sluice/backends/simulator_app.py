"""The simulator as an HTTP server: an ASGI application with vLLM's routes and metric names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uuid_utils

from sluice.backends.base import Endpoint, UpstreamRequest
from sluice.backends.simulator import SimulatorBackend, SimulatorResponse
from sluice.backends.simulator_metrics import render
from sluice.wire.errors import ErrorDetail

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_ENDPOINTS = {
    f"/v1/{endpoint.value}": endpoint
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS)
}


class SimulatorApp:
    """Serves one model name; see the module."""

    def __init__(self, backend: SimulatorBackend, model: str) -> None:
        self._backend = backend
        self._model = model

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        endpoint = _ENDPOINTS.get(path)
        if endpoint is not None and method == "POST":
            await self._generate(endpoint, receive, send)
        elif path == "/health":
            await _respond(send, 200, b"", "text/plain")
        elif path == "/metrics":
            text = render(self._backend.readings(), self._model)
            await _respond(send, 200, text, "text/plain; version=0.0.4")
        elif path == "/v1/models":
            await _respond(send, 200, msgspec.json.encode(self._models()))
        else:
            await _respond(send, 404, b'{"detail":"Not Found"}')

    async def _generate(self, endpoint: Endpoint, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first: then generation stops."""
        request = await _read(endpoint, receive, self._model)
        if isinstance(request, ErrorDetail):
            await _respond(send, 404 if request.param == "model" else 400, request.body())
            return
        answering = asyncio.ensure_future(self._answer(request, send))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, request: UpstreamRequest, send: Send) -> None:
        response = await self._backend.send(request)
        try:
            if not request.stream or response.status != 200:
                await _respond(send, response.status, await response.read(1 << 30))
            else:
                await _stream(response, send)
        finally:
            response.close()

    def _models(self) -> dict[str, Any]:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "sluice-simulator"}
        return {"object": "list", "data": [model]}


async def _read(endpoint: Endpoint, receive: Receive, model: str) -> UpstreamRequest | ErrorDetail:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    try:
        members = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return ErrorDetail(str(error), "BadRequestError", None, "400")
    if members.get("model", model) != model:
        text = f"The model `{members['model']}` does not exist."
        return ErrorDetail(text, "NotFoundError", "model", "404")
    needed = {"chat/completions": "messages", "completions": "prompt", "embeddings": "input"}
    if needed[endpoint.value] not in members:
        text = f"`{needed[endpoint.value]}` is required"
        return ErrorDetail(text, "BadRequestError", needed[endpoint.value], "400")
    stream = bool(members.get("stream"))
    return UpstreamRequest(endpoint, model, body, stream, str(uuid_utils.uuid7()))


async def _stream(response: SimulatorResponse, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while piece := await response.next():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _respond(
    send: Send, status: int, body: bytes, content_type: str = "application/json"
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
