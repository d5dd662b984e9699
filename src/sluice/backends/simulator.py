"""A vLLM look-alike that needs no engine: for a first start without keys, and for tests.

It answers in OpenAI's dialect with text that says what it is, at a configurable pace, and counts
tokens as whitespace-separated words. It never passes for a model: `system_fingerprint` names it.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from struct import pack
from typing import Any

import msgspec
import uuid_utils

from sluice.backends.base import Dialect, Endpoint, UpstreamRequest
from sluice.wire import sse
from sluice.wire.errors import ErrorDetail

FINGERPRINT = "sluice-simulator"
DIMENSIONS = 64

#: As OpenAI has it.
MAX_CHOICES = 128

_TEXT = [
    "This",
    "answer",
    "comes",
    "from",
    "the",
    "Sluice",
    "simulator,",
    "not",
    "from",
    "a",
    "language",
    "model.",
    "It",
    "has",
    "the",
    "form",
    "of",
    "an",
    "answer",
    "and",
    "the",
    "pace",
    "of",
    "an",
    "engine,",
    "so",
    "that",
    "clients",
    "can",
    "be",
    "tried",
    "before",
    "a",
    "provider",
    "or",
    "a",
    "GPU",
    "pool",
    "is",
    "configured.",
]


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """The simulator's pace.

    Attributes:
        ttft_seconds: time to first token.
        itl_seconds: time between tokens.
        context_length: prompt and output tokens that fit.
    """

    ttft_seconds: float = 0.02
    itl_seconds: float = 0.005
    context_length: int = 8192


@dataclass(slots=True)
class SimulatorCounters:
    """What vLLM's `/metrics` would count."""

    running: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )


class SimulatorResponse:
    """A response that is generated as it is read; see `UpstreamResponse`."""

    def __init__(self, status: int, content_type: str, body: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._body = body

    async def read(self, limit: int) -> bytes:
        return b"".join([piece async for piece in self._body])

    async def next(self) -> bytes:
        return await anext(self._body, b"")

    def close(self) -> None:
        """Nothing to drop: generation happens inside the read, and ends with it."""


class SimulatorBackend:
    """See `Backend`."""

    kind = "simulator"
    dialect = Dialect(
        token_limit="max_tokens",
        streamed_usage={"include_usage": True, "continuous_usage_stats": True},
        base64_embeddings=True,
    )

    def __init__(self, config: SimulatorConfig, counters: SimulatorCounters | None = None) -> None:
        self._config = config
        self.counters = counters or SimulatorCounters()

    async def send(self, request: UpstreamRequest) -> SimulatorResponse:
        body = msgspec.json.decode(request.body)
        if request.endpoint is Endpoint.EMBEDDINGS:
            return _json(200, _embeddings(body))
        prompt_tokens = _prompt_tokens(body, request.endpoint)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or len(_TEXT)
        if prompt_tokens + wanted > self._config.context_length:
            return _overflow(self._config.context_length, prompt_tokens, wanted)
        if (body.get("n") or 1) > MAX_CHOICES:
            return _too_many()
        run = _Run(body, request, prompt_tokens, wanted)
        if request.stream:
            return SimulatorResponse(200, "text/event-stream", self._stream(run))
        async for _ in self._generate(run):
            pass
        return _json(200, run.whole())

    async def close(self) -> None:
        """Nothing is held."""

    async def _generate(self, run: _Run) -> AsyncIterator[str]:
        """The words, each at its time; counted as vLLM counts."""
        self.counters.running += 1
        self.counters.prompt_tokens += run.prompt_tokens
        reason = "abort"
        try:
            await asyncio.sleep(self._config.ttft_seconds)
            for position, word in enumerate(run.words):
                if position:
                    await asyncio.sleep(self._config.itl_seconds)
                self.counters.generation_tokens += run.choices
                run.generated += run.choices
                yield word
            reason = run.finish_reason
        finally:
            self.counters.running -= 1
            self.counters.finished[reason] += 1

    async def _stream(self, run: _Run) -> AsyncIterator[bytes]:
        yield run.chunks({"role": "assistant", "content": ""}, None)
        async for word in self._generate(run):
            yield run.chunks({"content": word}, None)
        yield run.chunks({}, run.finish_reason)
        if run.include_usage:
            yield run.usage_chunk()
        yield sse.encode(b"[DONE]")


class _Run:
    """One generation."""

    def __init__(
        self, body: dict[str, Any], request: UpstreamRequest, prompt_tokens: int, wanted: int
    ) -> None:
        length = min(wanted, len(_TEXT))
        self.chat = request.endpoint is Endpoint.CHAT
        self.prompt_tokens = prompt_tokens
        self.words = [
            word if position == 0 else f" {word}" for position, word in enumerate(_TEXT[:length])
        ]
        self.finish_reason = "length" if length < len(_TEXT) else "stop"
        self.generated = 0
        self.choices = (body.get("n") or 1) * (1 if self.chat else _prompts(body.get("prompt")))
        options = body.get("stream_options") or {}
        self.include_usage = bool(options.get("include_usage"))
        self._continuous = bool(options.get("continuous_usage_stats"))
        self._head = {
            "id": ("chatcmpl-" if self.chat else "cmpl-") + uuid_utils.uuid7().hex,
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": FINGERPRINT,
        }

    def chunks(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        """One event for each choice."""
        return b"".join(self._chunk(index, delta, finish_reason) for index in range(self.choices))

    def _chunk(self, index: int, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice: dict[str, Any] = {"index": index, "finish_reason": finish_reason, "logprobs": None}
        if self.chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        body = {**self._head, "object": self._object("chunk"), "choices": [choice]}
        if self._continuous:
            body["usage"] = self._usage()
        return sse.encode(msgspec.json.encode(body))

    def usage_chunk(self) -> bytes:
        body = {
            **self._head,
            "object": self._object("chunk"),
            "choices": [],
            "usage": self._usage(),
        }
        return sse.encode(msgspec.json.encode(body))

    def whole(self) -> dict[str, Any]:
        text = "".join(self.words)
        message = {"role": "assistant", "content": text, "refusal": None}
        answer: dict[str, Any] = {"message": message} if self.chat else {"text": text}
        answer |= {"finish_reason": self.finish_reason, "logprobs": None}
        return {
            **self._head,
            "object": self._object(""),
            "choices": [{"index": index, **answer} for index in range(self.choices)],
            "usage": self._usage(),
        }

    def _object(self, part: str) -> str:
        if not self.chat:
            return "text_completion"
        return "chat.completion.chunk" if part else "chat.completion"

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
        }


def _prompt_tokens(body: dict[str, Any], endpoint: Endpoint) -> int:
    prompt = body.get("messages" if endpoint is Endpoint.CHAT else "prompt")
    return max(1, _words(prompt))


def _prompts(value: Any) -> int:
    """How many prompts a completions request has: a list of strings or of token arrays."""
    many = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    return len(value) if many else 1


def _words(value: Any) -> int:
    """Words in all the strings of a JSON value; token arrays count their tokens."""
    if isinstance(value, str):
        return len(value.split())
    if isinstance(value, list):
        return sum(1 if isinstance(item, int) else _words(item) for item in value)
    if isinstance(value, dict):
        return sum(_words(item) for key, item in value.items() if key not in ("role", "type"))
    return 0


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    value = body["input"]
    many = isinstance(value, list) and not (value and isinstance(value[0], int))
    inputs = value if many else [value]
    as_base64 = body.get("encoding_format") == "base64"
    tokens = max(1, _words(value))
    return {
        "object": "list",
        "model": body["model"],
        "data": [
            {"object": "embedding", "index": index, "embedding": _vector(item, as_base64)}
            for index, item in enumerate(inputs)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _vector(item: Any, as_base64: bool) -> str | list[float]:
    """A unit-range vector that depends on the input alone."""
    seed = msgspec.json.encode(item)
    octets = b"".join(sha256(seed + bytes([part])).digest() for part in range(DIMENSIONS // 32))
    floats = [octet / 127.5 - 1.0 for octet in octets]
    if as_base64:
        return b64encode(pack(f"<{len(floats)}f", *floats)).decode()
    return floats


def _json(status: int, body: dict[str, Any]) -> SimulatorResponse:
    return SimulatorResponse(status, "application/json", _once(msgspec.json.encode(body)))


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _too_many() -> SimulatorResponse:
    detail = ErrorDetail(f"`n` must be at most {MAX_CHOICES}", "invalid_request_error", "n")
    return SimulatorResponse(400, "application/json", _once(detail.body()))


def _overflow(limit: int, prompt: int, wanted: int) -> SimulatorResponse:
    detail = ErrorDetail(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt + wanted} tokens ({prompt} in the prompt, {wanted} for the output).",
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    )
    return SimulatorResponse(400, "application/json", _once(detail.body()))
