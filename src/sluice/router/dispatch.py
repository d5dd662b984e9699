"""Dispatch: try the attempts in turn until one starts to answer.

An attempt has answered when its whole body (not streamed) or its first generated token (streamed)
is here. Until then nothing has been shown to the client, so that the next attempt may take over;
afterwards there is no way back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.backends.base import (
    Backend,
    BackendError,
    UpstreamRequest,
    UpstreamResponse,
)
from sluice.router.catalog import Deployment
from sluice.router.translation import Call, Translation, translate
from sluice.wire.answer import Answer
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import ErrorDetail, InvalidRequest

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
class StreamStart:
    """A stream whose first token is here.

    Attributes:
        head: bytes for the client until now.
        stream: the codec, which goes on.
        response: gives what comes next; to be closed when the client leaves.
    """

    head: bytes
    stream: StreamCodec
    response: UpstreamResponse
    deployment: Deployment
    prompt_characters: int
    clean: Callable[[ErrorDetail], ErrorDetail]


class AttemptObserver(Protocol):
    """Is told about each attempt."""

    def attempt_started(self, deployment: Deployment) -> None:
        """A call to this deployment begins."""
        ...

    def attempt_streams(self, stream: StreamCodec) -> None:
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
            InvalidRequest: no deployment has a way to do what the request asks.
        """
        failure: UpstreamFailure | None = None
        refused: InvalidRequest | None = None
        for deployment in attempts:
            try:
                async with asyncio.timeout(deployment.timeouts.first_token):
                    answer = await self._attempt(deployment, call, observer)
            except TimeoutError:
                failure = _too_late(deployment.timeouts.first_token)
                observer.attempt_ended(deployment, _reason(failure))
            except InvalidRequest as error:  # this upstream can't do it; another may
                refused = refused or error
            except UpstreamFailure as error:
                failure = error
                observer.attempt_ended(deployment, _reason(error))
                if not error.elsewhere:
                    break
            else:
                observer.attempt_ended(deployment, "ok")
                return answer
        if refused is not None and failure is None:
            raise refused
        raise failure or UpstreamFailure(
            ErrorDetail("no deployment takes traffic", code="no_deployment")
        )

    async def _attempt(
        self, deployment: Deployment, call: Call, observer: AttemptObserver
    ) -> Answer | StreamStart:
        backend = self._backends[deployment.provider]
        translation = translate(call, deployment, backend.dialect)
        observer.attempt_started(deployment)
        try:
            response = await backend.send(
                UpstreamRequest(
                    endpoint=translation.endpoint,
                    model=deployment.model,
                    body=translation.body,
                    stream=call.request.stream,
                    request_id=call.request_id,
                    headers=translation.headers,
                )
            )
        except BackendError as error:
            raise UpstreamFailure(ErrorDetail(str(error), code=error.code)) from error
        answered = False
        try:
            if response.status != 200:
                raise await self._refusal(response, translation)
            if call.request.stream:
                start = await self._start_stream(response, deployment, translation, call, observer)
                answered = True
                return start
            return await self._whole(response, translation)
        except BackendError as error:
            raise UpstreamFailure(ErrorDetail(str(error), code=error.code)) from error
        finally:
            if not answered:
                response.close()

    async def _whole(self, response: UpstreamResponse, translation: Translation) -> Answer:
        answer = translation.read_answer(await response.read(MAX_ANSWER_BYTES))
        if isinstance(answer, ErrorDetail):
            raise self._failure(answer)
        return answer

    async def _start_stream(
        self,
        response: UpstreamResponse,
        deployment: Deployment,
        translation: Translation,
        call: Call,
        observer: AttemptObserver,
    ) -> StreamStart:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = await response.read(MAX_ERROR_BYTES)
            raise self._failure(
                translation.read_error(body)
                or ErrorDetail("the upstream did not answer with a stream")
            )
        stream = translation.open_stream()
        observer.attempt_streams(stream)
        head: list[bytes] = []
        while not (stream.has_content or stream.done):
            piece = await response.next()
            head.append(stream.feed(piece) if piece else stream.end())
            if stream.failure is not None and not stream.has_content:
                raise self._failure(stream.failure)
        return StreamStart(
            b"".join(head),
            stream,
            response,
            deployment,
            call.request.prompt_characters,
            self.clean,
        )

    async def _refusal(
        self, response: UpstreamResponse, translation: Translation
    ) -> UpstreamFailure:
        body = await response.read(MAX_ERROR_BYTES)
        detail = translation.read_error(body) or ErrorDetail(
            f"the upstream answered with status {response.status}"
        )
        return self._failure(detail, response.status, response.headers)

    def _failure(
        self,
        detail: ErrorDetail,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamFailure:
        return UpstreamFailure(self.clean(detail), status, headers)

    def clean(self, detail: ErrorDetail) -> ErrorDetail:
        """An upstream's error without the credentials that its text may hold."""
        return replace(detail, message=self._redact(detail.message))


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
