"""Backend for vLLM replicas of one's own, and what is asked of a replica besides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from sluice.backends.base import Dialect, UpstreamRequest, UpstreamResponse
from sluice.backends.http import Connection, HTTPClient

#: Usage on every chunk makes the tokens of an abandoned stream exact: vLLM's own abort counters
#: don't tell them (they count in `vllm:prompt_tokens_total` and in no per-request metric).
VLLM_DIALECT = Dialect(
    token_limit="max_completion_tokens",
    streamed_usage={"include_usage": True, "continuous_usage_stats": True},
    base64_embeddings=True,
    functions=False,
    vllm=True,
)

#: The same for engines that were started with `--scheduling-policy priority`.
VLLM_PRIORITY_DIALECT = replace(VLLM_DIALECT, priority=True)

#: How a question to a replica ended: well; with a failure; not in time; without a connection.
Finding = Literal["ok", "failed", "slow", "unreachable"]


@dataclass(frozen=True, slots=True)
class VLLMConfig:
    """One replica.

    Attributes:
        replica: the server's address, without `/v1`.
        connect_seconds: limit on making a connection.
    """

    replica: str
    connect_seconds: float = 5.0


class NoEventSource(Exception):
    """An engine publishes no KV events, or none that can be heard from here."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where an engine publishes what happens to its KV cache, over ZeroMQ.

    Attributes:
        events: the address that it publishes at.
        replay: where it sends again what was missed; None: it does not.
        topic: what its messages begin with.
    """

    events: str
    replay: str | None
    topic: str


class VLLMBackend:
    """See `Backend`. One replica; a pool of them is `router/pool`'s."""

    kind = "vllm"
    dialect = VLLM_DIALECT

    def __init__(self, config: VLLMConfig) -> None:
        base = config.replica.rstrip("/").removesuffix("/v1") + "/v1"
        self._client = HTTPClient(Connection(base, config.connect_seconds))

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()


class VLLMInspector:
    """Asks a replica how it is, by connections of its own: a question never waits for a request."""

    def __init__(self, config: VLLMConfig) -> None:
        self._server = config.replica.rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None
        self._model: str | None = None

    async def health(self, seconds: float) -> Finding:
        """What its `/health` says, which is about the engine's process only."""
        return (await self._ask("GET", "/health", seconds))[0]

    async def probe(self, seconds: float, credential: str | None = None) -> Finding:
        """Have it generate one token, which shows that the engine moves.

        Any answer but a fault of the server's will do: an engine that embeds can't generate.
        """
        if self._model is None:
            finding, body = await self._ask("GET", "/v1/models", seconds, credential)
            self._model = _first_model(body)
            if self._model is None:
                return finding if finding != "ok" else "failed"
        asked = {"model": self._model, "prompt": "1", "max_tokens": 1}
        finding, _ = await self._ask("POST", "/v1/completions", seconds, credential, asked)
        return finding

    async def metrics(self, seconds: float) -> str | None:
        """Its `/metrics`; None where there are none."""
        finding, body = await self._ask("GET", "/metrics", seconds)
        return body.decode(errors="replace") if finding == "ok" else None

    async def event_source(self, seconds: float) -> EventSource | None:
        """Where it publishes KV events; None: it can't be asked now.

        Of what it says only the ports are used: the host is the one that it has for requests.

        Raises:
            NoEventSource: it publishes none, or those of several ranks, whose caches are apart.
        """
        finding, body = await self._ask("GET", "/kv_event_sources", seconds)
        if finding != "ok":
            return None
        try:
            sources = msgspec.json.decode(body, type=dict[str, _Publisher])
        except msgspec.MsgspecError:
            raise NoEventSource("the engine does not say where its KV events are") from None
        if len(sources) != 1:
            raise NoEventSource(f"the engine has {len(sources)} sources of KV events instead of 1")
        (source,) = sources.values()
        replay = source.replay_endpoint
        return EventSource(
            self._beside(source.endpoint),
            None if replay is None else self._beside(replay),
            source.topic,
        )

    def _beside(self, endpoint: str) -> str:
        host, port = urlsplit(self._server).hostname or "", endpoint.rpartition(":")[2]
        if not endpoint.startswith("tcp://") or not port.isdecimal():
            raise NoEventSource("the engine's KV events are not at a TCP port")
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self,
        method: str,
        path: str,
        seconds: float,
        credential: str | None = None,
        body: object = None,
    ) -> tuple[Finding, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {"content-type": "application/json"}
        if credential is not None:
            headers["authorization"] = f"Bearer {credential}"
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method, self._server + path, data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                answer = await response.read()
        except TimeoutError:
            return "slow", b""
        except aiohttp.ClientConnectorError:
            return "unreachable", b""
        except (aiohttp.ClientError, OSError):
            return "failed", b""
        return ("failed" if response.status >= 500 else "ok"), answer


def _first_model(body: bytes) -> str | None:
    """The first name that a server serves, by its list of models."""
    try:
        listed = msgspec.json.decode(body, type=_Models)
    except msgspec.MsgspecError:
        return None
    return listed.data[0].id if listed.data else None


class _Publisher(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
