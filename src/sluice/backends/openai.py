"""Backend for OpenAI and for any server that speaks its protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.backends.base import Dialect, UpstreamRequest, UpstreamResponse
from sluice.backends.http import Connection, HTTPClient

OPENAI_URL = "https://api.openai.com/v1"

#: OpenAI itself: `max_tokens` is deprecated there and refused by its reasoning models.
OPENAI_DIALECT = Dialect(
    token_limit="max_completion_tokens",
    streamed_usage={"include_usage": True},
    base64_embeddings=True,
    responses=True,
    foreign=("thinking_blocks", "reasoning_content", "reasoning"),
)

#: Servers that speak the protocol: the oldest spelling of everything is the most understood.
COMPATIBLE_DIALECT = Dialect(
    token_limit="max_tokens",
    streamed_usage={"include_usage": True},
    base64_embeddings=False,
)


@dataclass(frozen=True, slots=True)
class OpenAIConfig:
    """One provider of kind `openai`.

    Attributes:
        base_url: up to and including `/v1`; None for OpenAI itself.
        connect_seconds: limit on making a connection.
        max_tokens_field: the name under which it takes the bound on output tokens, where it
            differs from the default.
        responses: whether it serves Responses; None: OpenAI itself does, others don't.
    """

    base_url: str | None = None
    connect_seconds: float = 5.0
    max_tokens_field: str | None = None
    responses: bool | None = None


class OpenAIBackend:
    """See `Backend`."""

    kind = "openai"

    def __init__(self, config: OpenAIConfig) -> None:
        known = OPENAI_DIALECT if config.base_url is None else COMPATIBLE_DIALECT
        self.dialect = replace(
            known,
            token_limit=config.max_tokens_field or known.token_limit,
            responses=known.responses if config.responses is None else config.responses,
        )
        self._client = HTTPClient(Connection(config.base_url or OPENAI_URL, config.connect_seconds))

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()
