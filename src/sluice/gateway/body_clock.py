"""A limit on how long a control-plane request's body may take. The data plane has its own."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.gateway.intake import LET_GO_SECONDS
from sluice.gateway.routes.completions import SERVED

#: Files arrive here: what has arrived buys more time.
_UPLOADS = frozenset({"/v1/files", "/v1/batch"})

#: Slowest pace of an upload, in bytes a second.
UPLOAD_PACE = 128 * 1024

_OWN_CLOCK = frozenset(f"/v1/{endpoint.value}" for endpoint in SERVED)


class BodyClock:
    """An ASGI application in front of another: a body that is late counts as broken off."""

    def __init__(self, app: Any, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, with its body on the clock."""
        if scope["path"] in _OWN_CLOCK:
            await self._app(scope, receive, send)
        else:
            pace = UPLOAD_PACE if scope["path"] in _UPLOADS else None
            await self._app(scope, _timed(receive, self._seconds, pace), send)


def _timed(receive: Any, seconds: float, pace: int | None) -> Any:
    due: float | None = asyncio.get_running_loop().time() + seconds

    async def receive_in_time() -> Any:
        nonlocal due
        if due is None:  # the body is complete; what comes now is the client's leaving
            return await receive()
        try:
            async with asyncio.timeout_at(due):
                message = await receive()
        except TimeoutError:
            await asyncio.sleep(LET_GO_SECONDS)
            return {"type": "http.disconnect"}
        if not message.get("more_body", False):
            due = None
        elif pace is not None:
            due += len(message.get("body", b"")) / pace
        return message

    return receive_in_time
