"""The seam to an upstream: a `Backend` sends one request and gives its response as it arrives.

A backend knows addresses, credentials and quirks of one kind of upstream. It never decides:
which attempt comes next, what a failure means for the caller, and what is charged are decided
above it.

    BackendError
    ├── ConnectFailed      no connection, so the request was certainly not processed
    ├── ConnectionLost     the connection broke, or the response could not be read
    ├── UpstreamTimeout    the upstream let a deadline pass
    ├── Overloaded         a pool refused the request, since it would come too late
    └── PoolFailed         several replicas of a pool failed the request one after the other
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import msgspec


class Endpoint(StrEnum):
    """The operations of the data plane; the value is the path below `/v1`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    COUNT_TOKENS = "messages/count_tokens"
    RESPONSES = "responses"
    MODERATIONS = "moderations"


#: How urgent a request is among those of its tier.
Priority = Literal["high", "normal", "low"]


class BackendError(Exception):
    """An upstream failed; the message never holds an address or a credential."""

    code = "upstream_error"


class ConnectFailed(BackendError):
    """No connection to the upstream could be made."""

    code = "upstream_unreachable"


class ConnectionLost(BackendError):
    """The connection to the upstream broke before the response was complete."""

    code = "upstream_connection_lost"


class UpstreamTimeout(BackendError):
    """The upstream let a deadline pass."""

    code = "upstream_timeout"


class Overloaded(BackendError):
    """A pool of replicas refused the request before anything was spent on it.

    Attributes:
        retry_after: whole seconds after which it would be taken, if nothing else came.
    """

    code = "pool_overloaded"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PoolFailed(BackendError):
    """Several replicas failed the request one after the other: asking more would fell more."""

    code = "pool_failed"


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where in a pool a request went.

    Attributes:
        replica: its name; None: it was refused.
        queued: seconds that the request waited in the pool's queue.
    """

    replica: str | None
    queued: float


def _nobody(_: Placed) -> None:
    """For those who do not care where a request went."""


class UpstreamRequest(msgspec.Struct, frozen=True):
    """One call as it goes to an upstream.

    Attributes:
        endpoint: the operation.
        model: the upstream's own model name, also inside `body`.
        body: a JSON object in the OpenAI dialect.
        stream: whether server-sent events are asked for.
        request_id: ours, sent along so that both sides' logs join.
        headers: to be sent besides the backend's own.
        credential: the provider's key for this call, where it wants one.
        team_id: whose request it is, for fair shares.
        tier: `batch` requests fill what interactive ones leave.
        priority: among those of its tier.
        max_tokens: the bound on its output; None: it has none.
        remaining: seconds in which it must have begun to answer.
        placed: is told where in a pool it went; more than once where the first failed it.
    """

    endpoint: Endpoint
    model: str
    body: bytes
    stream: bool
    request_id: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    credential: str | None = None
    team_id: str = ""
    tier: Literal["interactive", "batch"] = "interactive"
    priority: Priority = "normal"
    max_tokens: int | None = None
    remaining: float = math.inf
    placed: Callable[[Placed], None] = _nobody

    def __repr__(self) -> str:
        """Without the credential, and without what people wrote."""
        return f"UpstreamRequest({self.request_id!r}, {self.endpoint.value!r}, {self.model!r})"


class UpstreamResponse(Protocol):
    """A response whose status and headers have arrived; header names are lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            ConnectionLost: the body broke off, or is longer than `limit` bytes.
        """
        ...

    async def next(self) -> bytes:
        """The next piece of the body as it arrives; empty at a clean end, and only there.

        Raises:
            ConnectionLost: the body broke off.
        """
        ...

    def close(self) -> None:
        """Drop the call: the upstream sees its client leave. Harmless when complete."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an upstream of the OpenAI family accepts, where upstreams differ.

    Attributes:
        token_limit: the field under which chat takes its bound on output tokens.
        streamed_usage: `stream_options` that make a stream report usage; empty where unknown
            options are refused.
        base64_embeddings: whether `encoding_format: base64` is honoured.
        format: the format of its messages.
        responses: whether it serves OpenAI's Responses itself.
        functions: whether chat still takes `functions`, which came before tools.
        vllm: whether vLLM's own members are understood.
        priority: whether the engine schedules by `priority`, and so takes it.
        foreign: members of messages that other upstreams' answers have and this one refuses.
    """

    token_limit: str = "max_tokens"
    streamed_usage: Mapping[str, bool] | None = None
    base64_embeddings: bool = False
    format: Literal["openai", "anthropic"] = "openai"
    responses: bool = False
    functions: bool = True
    vllm: bool = False
    priority: bool = False
    foreign: tuple[str, ...] = ("thinking_blocks",)


class Backend(Protocol):
    """One upstream, or one pool of equal replicas."""

    kind: str
    dialect: Dialect

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request; return when status and headers have come.

        Cancelling the call closes the connection.

        Raises:
            ConnectFailed: no connection.
            ConnectionLost: the connection broke before the headers.
            Overloaded, PoolFailed: see there; from pools only.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
