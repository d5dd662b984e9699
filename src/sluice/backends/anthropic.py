"""Backend for Anthropic, and for servers that speak its Messages protocol."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.backends.base import Dialect, UpstreamRequest, UpstreamResponse
from sluice.backends.http import Connection, HTTPClient

ANTHROPIC_URL = "https://api.anthropic.com"

#: The version under which translated requests go: the later one refuses sampling parameters.
#: Requests of Messages clients bring their own.
VERSION = "2023-06-01"

ANTHROPIC_DIALECT = Dialect(token_limit="max_tokens", format="anthropic", functions=False)


@dataclass(frozen=True, slots=True)
class AnthropicConfig:
    """One provider of kind `anthropic`.

    Attributes:
        base_url: without `/v1`; None for Anthropic itself.
        connect_seconds: limit on making a connection.
    """

    base_url: str | None = None
    connect_seconds: float = 5.0


class AnthropicBackend:
    """See `Backend`."""

    kind = "anthropic"
    dialect = ANTHROPIC_DIALECT

    def __init__(self, config: AnthropicConfig) -> None:
        base = (config.base_url or ANTHROPIC_URL).rstrip("/").removesuffix("/v1") + "/v1"
        self._client = HTTPClient(
            Connection(
                base,
                config.connect_seconds,
                {"anthropic-version": VERSION},
                credential=("x-api-key", ""),
            )
        )

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()
