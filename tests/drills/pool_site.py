"""A gateway before real engines, and clients that watch how they are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from tests.engines.vllm_engine import VllmEngine
from tests.harness.fixtures import model
from tests.harness.gateway import TEAM_KEY, Gateway

#: Looks that a machine busy with three engines answers in time.
PATIENT = {"interval_seconds": 2.0, "timeout_seconds": 15.0, "idle_probe_seconds": 60.0}
#: Those of a deployment, but for how long an ejection lasts.
WATCHFUL = {"ejection_seconds": 1.0}


def pool_config(pools: dict[str, tuple[Sequence[str], dict[str, Any]]]) -> dict[str, Any]:
    """A gateway's configuration: pools by name, each with its replicas and options; the model of a
    pool has its name."""
    timeouts = {"first_token": 120, "between_tokens": 8, "total": 300}
    return {
        "providers": {
            name: {
                "kind": "vllm",
                "replicas": list(urls),
                "pool": {"replica_header": "name", **options},
                "timeouts": timeouts,
            }
            for name, (urls, options) in pools.items()
        },
        "models": [
            model(name, {"provider": name, "model": VllmEngine.model}, context_length=4096)
            for name in pools
        ],
    }


def name_of(engine: VllmEngine) -> str:
    """What a pool calls an engine."""
    return engine.url.removeprefix("http://")


@dataclass(slots=True)
class Served:
    """A stream, as its client saw it.

    Attributes:
        status: HTTP status; 0 if none came.
        ttft: seconds to the first generated piece.
        text: what was generated.
        replica: where it was served.
        usage: as reported at its end.
        finished: the end marker came.
        error: the code of the error inside it, or of the refusal.
    """

    status: int = 0
    ttft: float = 0.0
    text: str = ""
    replica: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    error: str | None = None


class Client:
    """Asks one gateway; several of its requests may be out at a time."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self._url = f"{gateway.url}/v1/chat/completions"
        self._session = session

    async def ask(
        self, pool: str, messages: list[dict[str, Any]], max_tokens: int = 8, **more: Any
    ) -> Served:
        """One stream, read to its end."""
        body = {
            "model": pool,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        served, began = Served(), time.perf_counter()
        async with self._session.post(self._url, json=body) as answer:
            served.status = answer.status
            served.replica = answer.headers.get("x-replica", "")
            if answer.status != 200:
                served.error = (await answer.json())["error"]["code"]
                return served
            async for line in answer.content:
                if line.startswith(b"data: "):
                    _take(served, line[6:].strip(), time.perf_counter() - began)
        return served


def _take(served: Served, data: bytes, seconds: float) -> None:
    if data == b"[DONE]":
        served.finished = True
        return
    event = msgspec.json.decode(data)
    if "error" in event:
        served.error = event["error"]["code"]
        return
    for choice in event.get("choices", ()):
        content = choice["delta"].get("content")
        if content:
            served.ttft = served.ttft or seconds
            served.text += content
    served.usage = event.get("usage") or served.usage


def connected() -> aiohttp.ClientSession:
    """A session with the team's key and as many connections as it takes."""
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {TEAM_KEY}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=300),
    )


async def in_groups(width: int, jobs: Sequence[Any]) -> list[Any]:
    """Await coroutines, so many at a time; the results in their order."""
    gate = asyncio.Semaphore(width)

    async def run(job: Any) -> Any:
        async with gate:
            return await job

    return await asyncio.gather(*map(run, jobs))
