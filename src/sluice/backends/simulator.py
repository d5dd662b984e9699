"""A vLLM look-alike that needs no model: for a first start without keys, and for tests.

It answers in OpenAI's dialect with text that says what it is, and counts tokens as
whitespace-separated words. Its pace is a fixed wait for each token, or that of a simulated engine
that all requests share. It never passes for a model: `system_fingerprint` names it.
"""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import cycle, islice
from struct import pack
from typing import Any

import msgspec
import uuid_utils

from sluice.backends.base import Dialect, Endpoint, UpstreamRequest
from sluice.backends.engine import EngineConfig, Refusal
from sluice.backends.simulator_engine import EnginePacing
from sluice.backends.simulator_pacing import (
    Job,
    Pacing,
    Readings,
    SimulatorCounters,
    SleepPacing,
    Tokens,
)
from sluice.backends.simulator_words import count_words
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


_WORDS = [word if position == 0 else f" {word}" for position, word in enumerate(_TEXT)]

_BUSY = {
    Refusal.MAX_NUM_QUEUED_REQS: "The engine is currently busy and cannot accept new requests.",
    Refusal.MAX_NUM_QUEUED_TOKENS: "The engine has reached its prefill token backlog limit.",
}


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """The simulator's pace.

    Attributes:
        ttft_seconds: time to first token.
        itl_seconds: time between tokens.
        context_length: prompt and output tokens that fit.
        engine: an engine that decides the pace in place of those two times.
    """

    ttft_seconds: float = 0.02
    itl_seconds: float = 0.005
    context_length: int = 8192
    engine: EngineConfig | None = None


class SimulatorResponse:
    """A response that is generated as it is read; see `UpstreamResponse`."""

    def __init__(
        self,
        status: int,
        content_type: str,
        body: AsyncIterator[bytes],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.status = status
        self._close = close
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._body = body

    async def read(self, limit: int) -> bytes:
        return b"".join([piece async for piece in self._body])

    async def next(self) -> bytes:
        return await anext(self._body, b"")

    def close(self) -> None:
        """Stop generating."""
        self._close()


class SimulatorBackend:
    """See `Backend`."""

    kind = "simulator"
    dialect = Dialect(
        token_limit="max_tokens",
        streamed_usage={"include_usage": True, "continuous_usage_stats": True},
        base64_embeddings=True,
    )

    def __init__(self, config: SimulatorConfig, counters: SimulatorCounters | None = None) -> None:
        self.counters = counters or SimulatorCounters()
        self._pacing: Pacing = SleepPacing(config.ttft_seconds, config.itl_seconds, self.counters)
        if config.engine is not None:
            self._pacing = EnginePacing(config.engine)
            self.dialect = replace(self.dialect, vllm=True)
        self._context_length = min(config.context_length, self._pacing.longest or sys.maxsize)

    async def send(self, request: UpstreamRequest) -> SimulatorResponse:
        body = msgspec.json.decode(request.body)
        if request.endpoint is Endpoint.EMBEDDINGS:
            return _json(200, _embeddings(body))
        job = _job(body, request.endpoint)
        if job.prompt_tokens + job.limit > self._context_length:
            return _overflow(self._context_length, job.prompt_tokens, job.limit)
        if job.copies > MAX_CHOICES:
            return _too_many()
        if job.priority and not self._pacing.priorities:
            return _no_priorities()
        if not _is_salt(job.salt):
            return _bad_salt()
        tokens = self._pacing.start(job)
        if isinstance(tokens, Refusal):
            return _refused(tokens)
        run = _Run(body, request, job, tokens)
        if request.stream:
            return SimulatorResponse(200, "text/event-stream", self._stream(run), tokens.close)
        with closing(tokens):
            for _ in job.words:
                await tokens.next()
        run.generated = len(job.words) * run.choices
        return _json(200, run.whole())

    def readings(self) -> Readings:
        """What `/metrics` shows now."""
        return self._pacing.readings()

    async def close(self) -> None:
        """Nothing is held."""

    async def _stream(self, run: _Run) -> AsyncIterator[bytes]:
        yield run.chunks({"role": "assistant", "content": ""}, None)
        with closing(run.tokens):
            for word in run.job.words:
                await run.tokens.next()
                run.generated += run.choices
                yield run.chunks({"content": word}, None)
        yield run.chunks({}, run.finish_reason)
        if run.include_usage:
            yield run.usage_chunk()
        yield sse.encode(b"[DONE]")


class _Run:
    """One generation."""

    def __init__(
        self, body: dict[str, Any], request: UpstreamRequest, job: Job, tokens: Tokens
    ) -> None:
        self.chat = request.endpoint is Endpoint.CHAT
        self.job = job
        self.tokens = tokens
        self.finish_reason = job.finish_reason
        self.generated = 0
        self.choices = job.answers
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
            "usage": self._usage(final=True),
        }
        return sse.encode(msgspec.json.encode(body))

    def whole(self) -> dict[str, Any]:
        text = "".join(self.job.words)
        message = {"role": "assistant", "content": text, "refusal": None}
        answer: dict[str, Any] = {"message": message} if self.chat else {"text": text}
        answer |= {"finish_reason": self.finish_reason, "logprobs": None}
        return {
            **self._head,
            "object": self._object(""),
            "choices": [{"index": index, **answer} for index in range(self.choices)],
            "usage": self._usage(final=True),
        }

    def _object(self, part: str) -> str:
        if not self.chat:
            return "text_completion"
        return "chat.completion.chunk" if part else "chat.completion"

    def _usage(self, final: bool = False) -> dict[str, Any]:
        prompt = self.job.prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": self.generated,
            "total_tokens": prompt + self.generated,
        }
        if final and self.tokens.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.tokens.cached_tokens}
        return usage


def _job(body: dict[str, Any], endpoint: Endpoint) -> Job:
    chat = endpoint is Endpoint.CHAT
    asked = body.get("messages" if chat else "prompt")
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(_TEXT)
    endless = bool(body.get("ignore_eos"))
    length = limit if endless else min(limit, len(_TEXT))
    return Job(
        prompts=[asked] if chat else _prompts(asked),
        prompt_tokens=max(1, count_words(asked)),
        limit=limit,
        copies=body.get("n") or 1,
        words=_WORDS[:length] if length <= len(_WORDS) else list(islice(cycle(_WORDS), length)),
        finish_reason="length" if endless or length < len(_TEXT) else "stop",
        priority=body.get("priority") or 0,
        salt=body.get("cache_salt"),
    )


def _prompts(value: Any) -> list[Any]:
    """The prompts of a completions request: one, or a list of strings or of token arrays."""
    many = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    return value if many else [value]


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    value = body["input"]
    many = isinstance(value, list) and not (value and isinstance(value[0], int))
    inputs = value if many else [value]
    as_base64 = body.get("encoding_format") == "base64"
    tokens = max(1, count_words(value))
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


def _no_priorities() -> SimulatorResponse:
    text = "`priority` needs the scheduling policy `priority`"
    detail = ErrorDetail(text, "BadRequestError", "priority", "400")
    return SimulatorResponse(400, "application/json", _once(detail.body()))


def _is_salt(value: Any) -> bool:
    """Whether vLLM takes it."""
    if value is None:
        return True
    return isinstance(value, str) and 0 < len(value) <= 128 and not set(value) & set("@/\\\0")


def _bad_salt() -> SimulatorResponse:
    text = "`cache_salt` must be 1 to 128 characters and must not contain '@', '/', '\\' or NUL"
    detail = ErrorDetail(text, "BadRequestError", "cache_salt", "400")
    return SimulatorResponse(400, "application/json", _once(detail.body()))


def _refused(reason: Refusal) -> SimulatorResponse:
    """In vLLM's words."""
    text = f"{_BUSY[reason]} Please try again later or on a different instance."
    detail = ErrorDetail(text, "Service Unavailable", None, "503")
    return SimulatorResponse(503, "application/json", _once(detail.body()))


def _overflow(limit: int, prompt: int, wanted: int) -> SimulatorResponse:
    detail = ErrorDetail(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt + wanted} tokens ({prompt} in the prompt, {wanted} for the output).",
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    )
    return SimulatorResponse(400, "application/json", _once(detail.body()))
