"""Dispatch: try the attempts in turn until one starts to answer.

An attempt has answered when its whole body (not streamed) or its first generated token (streamed)
is here. Until then nothing has been shown to the client, so that the next attempt may take over;
afterwards there is no way back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.backends.base import (
    Backend,
    BackendError,
    Endpoint,
    UpstreamRequest,
    UpstreamResponse,
)
from sluice.router.catalog import Deployment
from sluice.wire.answer import Answer, read_answer
from sluice.wire.embeddings import Encoding
from sluice.wire.errors import ErrorDetail, read_error
from sluice.wire.request import Request, upstream_body
from sluice.wire.stream import CompletionStream, StreamView

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024

#: Statuses after which another deployment may do better: its faults and its limits, and our
#: credential being refused, which says nothing about the next provider's.
_ELSEWHERE = frozenset({401, 402, 403, 408, 429})


class UpstreamFailure(Exception):
    """An attempt, or the last of several, failed.

    Attributes:
        detail: the upstream's error, or ours about it.
        status: the upstream's status; None where none came.
        headers: the upstream's headers.
    """

    def __init__(
        self,
        detail: ErrorDetail,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail.message)
        self.detail = detail
        self.status = status
        self.headers: Mapping[str, str] = headers or {}

    @property
    def elsewhere(self) -> bool:
        """Whether another deployment may do better."""
        return self.status is None or self.status >= 500 or self.status in _ELSEWHERE


@dataclass(frozen=True, slots=True)
class Call:
    """One request as dispatch needs it."""

    endpoint: Endpoint
    request: Request
    request_id: str
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A stream whose first token is here.

    Attributes:
        head: bytes for the client until now.
        stream: the codec, which goes on.
        response: gives what comes next; to be closed when the client leaves.
    """

    head: bytes
    stream: CompletionStream
    response: UpstreamResponse
    deployment: Deployment
    prompt_characters: int


class AttemptObserver(Protocol):
    """Is told about each attempt."""

    def attempt_started(self, deployment: Deployment) -> None:
        """A call to this deployment begins."""
        ...

    def attempt_streams(self, stream: CompletionStream) -> None:
        """The call answers as a stream, of which this is the codec."""
        ...

    def attempt_ended(self, deployment: Deployment, reason: str) -> None:
        """The call answered (`ok`), or failed for a reason."""
        ...


class Dispatcher:
    """Sends requests to backends."""

    def __init__(self, backends: Mapping[str, Backend], redact: Callable[[str], str]) -> None:
        """Args:
        backends: by provider name.
        redact: takes known secrets out of a text that an upstream wrote.
        """
        self._backends = backends
        self._redact = redact

    async def dispatch(
        self, attempts: Sequence[Deployment], call: Call, observer: AttemptObserver
    ) -> Answer | StreamStart:
        """The first answer that an attempt gives.

        Raises:
            UpstreamFailure: every attempt failed, or one failed in a way that no other would
                mend; of several, the last.
        """
        failure = UpstreamFailure(ErrorDetail("no deployment takes traffic", code="no_deployment"))
        for deployment in attempts:
            observer.attempt_started(deployment)
            try:
                async with asyncio.timeout(deployment.timeouts.first_token):
                    answer = await self._attempt(deployment, call, observer)
            except TimeoutError:
                failure = _too_late(deployment.timeouts.first_token)
                observer.attempt_ended(deployment, _reason(failure))
            except UpstreamFailure as error:
                failure = error
                observer.attempt_ended(deployment, _reason(error))
                if not error.elsewhere:
                    break
            else:
                observer.attempt_ended(deployment, "ok")
                return answer
        raise failure

    async def _attempt(
        self, deployment: Deployment, call: Call, observer: AttemptObserver
    ) -> Answer | StreamStart:
        backend = self._backends[deployment.provider]
        try:
            response = await backend.send(_upstream_request(backend, deployment, call))
        except BackendError as error:
            raise UpstreamFailure(ErrorDetail(str(error), code=error.code)) from error
        answered = False
        try:
            if response.status != 200:
                raise await self._refusal(response)
            if call.request.stream:
                start = await self._start_stream(response, deployment, call, observer)
                answered = True
                return start
            return await self._whole(response, call)
        except BackendError as error:
            raise UpstreamFailure(ErrorDetail(str(error), code=error.code)) from error
        finally:
            if not answered:
                response.close()

    async def _whole(self, response: UpstreamResponse, call: Call) -> Answer:
        body = await response.read(MAX_ANSWER_BYTES)
        request = call.request
        answer = read_answer(body, request.model, request.prompt_characters, call.encoding)
        if isinstance(answer, ErrorDetail):
            raise self._failure(answer)
        return answer

    async def _start_stream(
        self,
        response: UpstreamResponse,
        deployment: Deployment,
        call: Call,
        observer: AttemptObserver,
    ) -> StreamStart:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = await response.read(MAX_ERROR_BYTES)
            raise self._failure(
                read_error(body) or ErrorDetail("the upstream did not answer with a stream")
            )
        stream = CompletionStream(_view(call.request))
        observer.attempt_streams(stream)
        head: list[bytes] = []
        while not (stream.has_content or stream.done):
            piece = await response.next()
            head.append(stream.feed(piece) if piece else stream.end())
            if stream.failure is not None and not stream.has_content:
                raise self._failure(stream.failure)
        return StreamStart(
            b"".join(head), stream, response, deployment, call.request.prompt_characters
        )

    async def _refusal(self, response: UpstreamResponse) -> UpstreamFailure:
        body = await response.read(MAX_ERROR_BYTES)
        detail = read_error(body) or ErrorDetail(
            f"the upstream answered with status {response.status}"
        )
        return self._failure(detail, response.status, response.headers)

    def _failure(
        self,
        detail: ErrorDetail,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamFailure:
        clean = ErrorDetail(self._redact(detail.message), detail.type, detail.param, detail.code)
        return UpstreamFailure(clean, status, headers)


def _upstream_request(backend: Backend, deployment: Deployment, call: Call) -> UpstreamRequest:
    dialect = backend.dialect
    limit = {
        Endpoint.CHAT: dialect.token_limit,
        Endpoint.COMPLETIONS: "max_tokens",
        Endpoint.EMBEDDINGS: None,
    }[call.endpoint]
    request = call.request
    if call.encoding == "base64" and not dialect.base64_embeddings:
        request = request.with_member("encoding_format", "float")
    return UpstreamRequest(
        endpoint=call.endpoint,
        model=deployment.model,
        body=upstream_body(request, deployment.model, limit, dialect.streamed_usage),
        stream=request.stream,
        request_id=call.request_id,
    )


def _view(request: Request) -> StreamView:
    options = request.stream_options
    if options is None:
        return StreamView(request.model)
    return StreamView(request.model, options.include_usage, options.continuous_usage_stats)


def _too_late(seconds: float) -> UpstreamFailure:
    return UpstreamFailure(
        ErrorDetail(
            f"the upstream did not begin to answer within {seconds:g} s", code="upstream_timeout"
        )
    )


#: Our own words for failures that come without a status; an upstream's words are not counted by.
_OWN_CODES = frozenset(
    {
        "no_deployment",
        "upstream_aborted",
        "upstream_connection_lost",
        "upstream_invalid_response",
        "upstream_timeout",
        "upstream_unreachable",
    }
)


def _reason(failure: UpstreamFailure) -> str:
    """A word for metrics, from a small set."""
    if failure.status is not None:
        return f"http_{failure.status}"
    code = failure.detail.code
    return code if code is not None and code in _OWN_CODES else "upstream_error"
