"""From a client's request to one upstream's, and back: which codecs join the two.

What depends on the pair of formats is decided here, once for each attempt; dispatch and relay
know bytes only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.backends.base import Dialect, Endpoint
from sluice.router.catalog import Deployment
from sluice.wire.answer import Answer, read_answer
from sluice.wire.codec import StreamCodec
from sluice.wire.embeddings import Encoding
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.request import Request, upstream_body
from sluice.wire.stream import CompletionStream, StreamView


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request as dispatch needs it.

    Attributes:
        endpoint: the operation that the client called.
        request: its checked request, in the client's own format.
        request_id: ours.
        encoding: for embeddings, the encoding that the client wants.
        headers: of the client's, those that travel with its body to upstreams of its own format.
    """

    endpoint: Endpoint
    request: Request
    request_id: str
    encoding: Encoding | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Translation:
    """One attempt's request, and how to read what comes back.

    Attributes:
        endpoint: the upstream's operation.
        body: the upstream's request.
        open_stream: makes the codec of a streamed answer.
        read_answer: reads a whole answer: the client's form of it, or what is wrong with it.
        read_error: reads the body of a refusal.
        headers: to be sent along.
    """

    endpoint: Endpoint
    body: bytes
    open_stream: Callable[[], StreamCodec]
    read_answer: Callable[[bytes], Answer | ErrorDetail]
    read_error: Callable[[bytes], ErrorDetail | None] = read_error
    headers: Mapping[str, str] = field(default_factory=dict)


def translate(call: Call, deployment: Deployment, dialect: Dialect) -> Translation:
    """The translation for a call to a deployment.

    Raises:
        InvalidRequest: the upstream has no way to do what the request asks; names the parameter.
    """
    return _openai(call, deployment, dialect)


def _openai(call: Call, deployment: Deployment, dialect: Dialect) -> Translation:
    """The same format on both sides."""
    request = call.request
    if call.encoding == "base64" and not dialect.base64_embeddings:
        request = request.with_member("encoding_format", "float")
    limit = {Endpoint.CHAT: dialect.token_limit, Endpoint.COMPLETIONS: "max_tokens"}
    return Translation(
        endpoint=call.endpoint,
        body=upstream_body(
            request, deployment.model, limit.get(call.endpoint), dialect.streamed_usage
        ),
        open_stream=lambda: CompletionStream(view_of(request)),
        read_answer=lambda body: read_answer(
            body, request.model, request.prompt_characters, call.encoding
        ),
    )


def view_of(request: Request) -> StreamView:
    """How a chat client wants to see its stream."""
    options = request.stream_options
    if options is None:
        return StreamView(request.model)
    return StreamView(request.model, options.include_usage, options.continuous_usage_stats)
