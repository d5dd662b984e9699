"""How long a control-plane body may take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.gateway.body_clock import UPLOAD_PACE, BodyClock


async def heard(path: str, first: bytes) -> list[str]:
    """The messages of a body whose second part comes after more than the time that it has."""
    messages: list[Any] = [{"type": "http.request", "body": first, "more_body": True}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.1)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.extend([(await receive())["type"], (await receive())["type"]])

    kinds: list[str] = []
    await BodyClock(app, 0.05)({"path": path}, receive, None)
    return kinds


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batch"])
async def test_what_has_arrived_of_an_upload_buys_time(path: str) -> None:
    assert await heard(path, b"x" * UPLOAD_PACE) == ["http.request", "http.request"]
    assert await heard(path, b"x") == ["http.request", "http.disconnect"]


async def test_other_bodies_have_their_time() -> None:
    kinds = await heard("/admin/teams", b"x" * UPLOAD_PACE)
    assert kinds == ["http.request", "http.disconnect"]
