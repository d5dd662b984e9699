"""Backend for vLLM replicas of one's own."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.backends.base import Dialect, UpstreamRequest, UpstreamResponse
from sluice.backends.http import Connection, HTTPClient

#: Usage on every chunk makes the tokens of an abandoned stream exact: vLLM's own abort counters
#: don't tell them (they count in `vllm:prompt_tokens_total` and in no per-request metric).
VLLM_DIALECT = Dialect(
    token_limit="max_completion_tokens",
    streamed_usage={"include_usage": True, "continuous_usage_stats": True},
    base64_embeddings=True,
    vllm=True,
)


@dataclass(frozen=True, slots=True)
class VLLMConfig:
    """One provider of kind `vllm`.

    Attributes:
        replica: the server's address, without `/v1`.
        connect_seconds: limit on making a connection.
    """

    replica: str
    connect_seconds: float = 5.0


class VLLMBackend:
    """See `Backend`. One replica for now; placement over many comes with the pool."""

    kind = "vllm"
    dialect = VLLM_DIALECT

    def __init__(self, config: VLLMConfig) -> None:
        base = config.replica.rstrip("/").removesuffix("/v1") + "/v1"
        self._client = HTTPClient(Connection(base, config.connect_seconds))

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()
