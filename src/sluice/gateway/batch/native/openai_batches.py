"""OpenAI's Batches, by its SDK; see `provider.ProviderBatches`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx2
import msgspec
import openai
from openai import AsyncOpenAI
from openai.types import Batch

from sluice.backends.openai import OPENAI_URL
from sluice.gateway.batch.native.provider import (
    CALL_SECONDS,
    CLOCK_SKEW,
    Progress,
    ProviderAway,
    ProviderRefused,
    Submission,
    error_of,
)
from sluice.gateway.batch.native.results import Outcome, lines_of, read_openai_line

#: Member of a batch's metadata by which it is found again.
MARK = "sluice_native_batch"


class OpenAIBatches:
    """See the module."""

    def __init__(self, base_url: str | None) -> None:
        """Args:
        base_url: up to and including `/v1`; None for OpenAI itself.
        """
        self._base_url = base_url or OPENAI_URL
        self._clients: dict[str, AsyncOpenAI] = {}

    async def submit(self, submission: Submission, key: str) -> str:
        client = self._client(key)
        url = f"/v1/{submission.endpoint.value}"
        content = b"".join(
            msgspec.json.encode(
                {
                    "custom_id": request.name,
                    "method": "POST",
                    "url": url,
                    "body": msgspec.Raw(request.body),
                }
            )
            + b"\n"
            for request in submission.requests
        )
        name = f"sluice-{submission.id.hex}.jsonl"
        with _named_errors():
            file = await client.files.create(
                file=(name, content, "application/jsonl"), purpose="batch"
            )
        try:
            with _named_errors():
                batch = await client.batches.create(
                    completion_window="24h",
                    endpoint=cast("Any", url),
                    input_file_id=file.id,
                    metadata={MARK: submission.id.hex},
                )
        except ProviderRefused:
            await self._delete(client, [file.id])
            raise
        return batch.id

    async def find(self, submission: Submission, known: Sequence[str], key: str) -> str | None:
        earliest = (submission.made_at - CLOCK_SKEW).timestamp()
        with _named_errors():
            async for batch in self._client(key).batches.list(limit=100):  # the newest first
                if (batch.metadata or {}).get(MARK) == submission.id.hex:
                    return batch.id
                if batch.created_at < earliest:
                    break
        return None

    async def progress(self, upstream_id: str, key: str) -> Progress:
        with _named_errors():
            batch = await self._client(key).batches.retrieve(upstream_id)
        match batch.status:
            case "failed":
                return Progress("failed", _reason(batch))
            case "completed" | "expired" | "cancelled":
                files = (batch.output_file_id, batch.error_file_id)
                return Progress("ended", files=tuple(file for file in files if file))
        return Progress("running")

    async def results(
        self, upstream_id: str, progress: Progress, key: str
    ) -> AsyncIterator[Outcome | None]:
        for file in progress.files:
            with _named_errors():
                async with self._client(key).files.with_streaming_response.content(
                    file
                ) as response:
                    async for line in lines_of(response.iter_bytes()):
                        yield read_openai_line(line)

    async def cancel(self, upstream_id: str, key: str) -> None:
        # refused: it has ended meanwhile
        with suppress(ProviderRefused), _named_errors():
            await self._client(key).batches.cancel(upstream_id)

    async def remove(self, upstream_id: str, progress: Progress, key: str) -> None:
        client = self._client(key)
        with _named_errors():
            batch = await client.batches.retrieve(upstream_id)
        files = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        await self._delete(client, [file for file in files if file])

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _delete(self, client: AsyncOpenAI, files: Sequence[str]) -> None:
        for file in files:
            with suppress(ProviderRefused), _named_errors():
                await client.files.delete(file)

    def _client(self, key: str) -> AsyncOpenAI:
        """Without retries: a batch whose answer got lost must be looked for, not made again."""
        if key not in self._clients:
            self._clients[key] = AsyncOpenAI(
                api_key=key, base_url=self._base_url, max_retries=0, timeout=CALL_SECONDS
            )
        return self._clients[key]


def _reason(batch: Batch) -> str:
    faults = (batch.errors.data if batch.errors else None) or []
    return "; ".join(fault.code or fault.message or "" for fault in faults[:3]) or "failed"


@contextmanager
def _named_errors() -> Iterator[None]:
    """The SDK's errors as ours. Of what providers write only the code goes on: texts may hold
    keys, and parts of requests."""
    try:
        yield
    except openai.APIStatusError as error:
        raise error_of(error.status_code, error.code or type(error).__name__) from None
    except (openai.OpenAIError, httpx2.HTTPError) as error:
        raise ProviderAway(type(error).__name__) from None
