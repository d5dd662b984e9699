"""Anthropic's Message Batches, by its SDK; see `provider.ProviderBatches`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anthropic
import httpx2
import msgspec
from anthropic import AsyncAnthropic

from sluice.backends.anthropic import ANTHROPIC_URL
from sluice.gateway.batch.native.provider import (
    CALL_SECONDS,
    CLOCK_SKEW,
    Progress,
    ProviderAway,
    ProviderRefused,
    Submission,
    error_of,
)
from sluice.gateway.batch.native.results import Outcome, lines_of, read_anthropic_line


class AnthropicBatches:
    """See the module."""

    def __init__(self, base_url: str | None) -> None:
        """Args:
        base_url: without `/v1`; None for Anthropic itself.
        """
        self._base_url = (base_url or ANTHROPIC_URL).rstrip("/").removesuffix("/v1")
        self._clients: dict[str, AsyncAnthropic] = {}

    async def submit(self, submission: Submission, key: str) -> str:
        requests: list[Any] = [
            {"custom_id": request.name, "params": _params(request.body)}
            for request in submission.requests
        ]
        with _named_errors():
            batch = await self._client(key).messages.batches.create(requests=requests)
        return batch.id

    async def find(self, submission: Submission, known: Sequence[str], key: str) -> str | None:
        """Anthropic's batches have no metadata. One that is not ours by another name, came when
        this one may have come, and has as many requests is taken for it. Should that be wrong,
        none of its results has a name of this one's requests, and they are called live."""
        earliest = submission.made_at - CLOCK_SKEW
        found: str | None = None
        with _named_errors():
            async for batch in self._client(key).messages.batches.list(limit=100):
                if batch.created_at < earliest:
                    break
                counts = batch.request_counts
                total = (
                    counts.processing
                    + counts.succeeded
                    + counts.errored
                    + counts.canceled
                    + counts.expired
                )
                if total == len(submission.requests) and batch.id not in known:
                    found = batch.id  # the oldest of them: the newest come first
        return found

    async def progress(self, upstream_id: str, key: str) -> Progress:
        with _named_errors():
            batch = await self._client(key).messages.batches.retrieve(upstream_id)
        return Progress("ended" if batch.processing_status == "ended" else "running")

    async def results(
        self, upstream_id: str, progress: Progress, key: str
    ) -> AsyncIterator[Outcome | None]:
        batches = self._client(key).messages.batches
        with _named_errors():
            async with batches.with_streaming_response.results(upstream_id) as response:
                async for line in lines_of(response.iter_bytes()):
                    yield read_anthropic_line(line)

    async def cancel(self, upstream_id: str, key: str) -> None:
        # refused: it has ended meanwhile
        with suppress(ProviderRefused), _named_errors():
            await self._client(key).messages.batches.cancel(upstream_id)

    async def remove(self, upstream_id: str, progress: Progress, key: str) -> None:
        with suppress(ProviderRefused), _named_errors():
            await self._client(key).messages.batches.delete(upstream_id)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _client(self, key: str) -> AsyncAnthropic:
        """Without retries: a batch whose answer got lost must be looked for, not made again."""
        if key not in self._clients:
            self._clients[key] = AsyncAnthropic(
                api_key=key, base_url=self._base_url, max_retries=0, timeout=CALL_SECONDS
            )
        return self._clients[key]


def _params(body: bytes) -> dict[str, Any]:
    params: dict[str, Any] = msgspec.json.decode(body)
    params.pop("stream", None)
    return params


@contextmanager
def _named_errors() -> Iterator[None]:
    """The SDK's errors as ours. Of what providers write only the type goes on: texts may hold
    keys, and parts of requests."""
    try:
        yield
    except anthropic.APIStatusError as error:
        raise error_of(error.status_code, error.type or type(error).__name__) from None
    except (anthropic.AnthropicError, httpx2.HTTPError) as error:
        raise ProviderAway(type(error).__name__) from None
