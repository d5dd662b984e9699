"""Dispatch: call targets in turn until one starts to answer.

A target has answered when its whole body (not streamed) or its first generated token (streamed)
is here. Until then nothing has been shown to the client, so that the next target may take over;
afterwards there is no way back. Which target is next, after which wait, and what a failure means
for breakers and credentials is decided in `plan` and `retries`; here it is done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from sluice.backends.base import (
    Backend,
    BackendError,
    Overloaded,
    Placed,
    UpstreamRequest,
    UpstreamResponse,
)
from sluice.router.breakers import Breakers, Permit, Rest
from sluice.router.catalog import Deployment
from sluice.router.credentials import Credential, Credentials
from sluice.router.plan import ATTEMPT_BUDGET, AllResting, GiveUp, Plan, Route, Step
from sluice.router.retries import DEADLINE_EXCEEDED, Failure, Where, judge, retry_after
from sluice.router.translation import Call, Translation, translate
from sluice.wire.answer import Answer
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import ErrorDetail, InvalidRequest

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024

#: Time for a request without a deadline, in seconds.
_UNHURRIED = 24 * 3600.0


class UpstreamFailure(Exception):
    """A call failed, or the last of several.

    Attributes:
        detail: the upstream's error, or ours about it.
        status: the upstream's status; None where none came.
        headers: the upstream's headers.
        resting: where every target rests by now: until when.
    """

    def __init__(
        self,
        detail: ErrorDetail,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        where: Where = "answer",
    ) -> None:
        super().__init__(detail.message)
        self.detail = detail
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self.resting: AllResting | None = None
        self._where: Where = where

    def classified(self) -> Failure:
        """The failure as decisions need it."""
        given = self.headers.get("x-should-retry")
        return Failure(
            detail=self.detail,
            status=self.status,
            retry_after=retry_after(self.headers, datetime.now(UTC)),
            where=self._where,
            should_retry=None if given is None else given == "true",
        )


class TargetsResting(Exception):
    """Nothing was called: every target rests.

    Attributes:
        seconds: until the first may be called.
        limited: all of them rest because of limits, and not because of faults.
    """

    def __init__(self, seconds: float, limited: bool) -> None:
        super().__init__("every deployment rests")
        self.seconds = seconds
        self.limited = limited


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A stream whose first token is here.

    Attributes:
        head: bytes for the client until now.
        stream: the codec, which goes on.
        response: gives what comes next; to be closed when the client leaves.
        deployment: which one it is.
        prompt_characters: length of the prompt, for estimates.
        clean: takes credentials out of an upstream's error.
        permit: to be told if the stream breaks by the upstream's fault.
    """

    head: bytes
    stream: StreamCodec
    response: UpstreamResponse
    deployment: Deployment
    prompt_characters: int
    clean: Callable[[ErrorDetail], ErrorDetail]
    permit: Permit

    def broke(self, detail: ErrorDetail) -> None:
        """The stream failed after its first token."""
        if judge(Failure(detail, where="stream")).counts:
            self.permit.failed()


class AttemptObserver(Protocol):
    """Is told about each call."""

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None:
        """A call begins; what was offered and could not be passed on is named."""
        ...

    def attempt_placed(self, placed: Placed) -> None:
        """The call went to a replica of a pool, or was refused by the pool."""
        ...

    def attempt_streams(self, stream: StreamCodec) -> None:
        """The call answers as a stream, of which this is the codec."""
        ...

    def attempt_ended(self, step: Step, reason: str) -> None:
        """The call answered (`ok`), or failed for a reason of a small set."""
        ...


class Dispatcher:
    """Sends requests to backends."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        credentials: Mapping[str, Credentials],
        breakers: Breakers,
        redact: Callable[[str], str],
        budget: int = ATTEMPT_BUDGET,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        backends: by provider name.
        credentials: of the providers that want one.
        breakers: of all deployments.
        redact: takes known secrets out of a text that an upstream wrote.
        budget: upstream calls that one request may cost.
        draw: gives a number in [0, 1).
        """
        self._backends = backends
        self._credentials = credentials
        self._breakers = breakers
        self._redact = redact
        self._budget = budget
        self._draw = draw

    async def dispatch(
        self,
        route: Route,
        call: Call,
        observer: AttemptObserver,
        remaining: Callable[[], float] = lambda: _UNHURRIED,
    ) -> Answer | StreamStart:
        """The first answer that a target gives.

        Args:
            route: the models that may be asked.
            call: what to ask.
            observer: is told of each call.
            remaining: gives the seconds until the request's deadline.

        Raises:
            UpstreamFailure: every call failed, or one failed in a way that no other would mend;
                of several, the last.
            TargetsResting: nothing could be called.
            InvalidRequest: no target has a way to do what the request asks.
        """
        plan = Plan(route, self._rests, self._draw, self._budget, call.request.disable_fallbacks)
        failure: UpstreamFailure | None = None
        refused: InvalidRequest | None = None
        step = plan.next(None, remaining())
        while isinstance(step, Step):
            if step.wait:
                await asyncio.sleep(step.wait)
            try:
                answer = await self._take(step, call, observer, remaining)
            except InvalidRequest as error:  # this upstream has no way to do it; another may
                refused, answer = refused or error, None
            except UpstreamFailure as error:
                failure = error
                step = plan.next(error.classified(), remaining())
                continue
            if answer is not None:
                return answer
            step = plan.next(None, remaining())
        raise _outcome(step, failure, refused)

    def clean(self, detail: ErrorDetail) -> ErrorDetail:
        """An upstream's error without the credentials that any of its texts may hold."""
        return ErrorDetail(
            message=self._redact(detail.message),
            type=self._redact(detail.type),
            param=detail.param and self._redact(detail.param),
            code=detail.code and self._redact(detail.code),
        )

    async def _take(
        self, step: Step, call: Call, observer: AttemptObserver, remaining: Callable[[], float]
    ) -> Answer | StreamStart | None:
        """Make a planned call; None if its target came to rest meanwhile."""
        deployment = step.deployment
        translation = translate(
            call, step.model, deployment, self._backends[deployment.provider].dialect
        )
        held = self._credentials.get(deployment.provider)
        credential = None if held is None else held.choose(deployment.name)
        if held is not None and credential is None:
            return None
        permit = self._breakers.begin(deployment.name)
        if permit is None:
            return None
        observer.attempt_started(step, translation.dropped)
        attempt = _Attempt(step, call, translation, credential, permit)
        try:
            answer = await self._in_time(attempt, observer, remaining())
        except UpstreamFailure as error:
            observer.attempt_ended(step, _reason(error))
            self._learn(error.classified(), attempt)
            raise
        except BaseException:  # cancelled, or a fault of ours: says nothing about the upstream
            permit.abandoned()
            raise
        permit.succeeded()
        observer.attempt_ended(step, "ok")
        return answer

    async def _in_time(
        self, attempt: _Attempt, observer: AttemptObserver, remaining: float
    ) -> Answer | StreamStart:
        own = attempt.step.deployment.timeouts.first_token
        try:
            async with asyncio.timeout(min(own, remaining)):
                return await self._attempt(attempt, observer, min(own, remaining))
        except TimeoutError:
            if own <= remaining:
                text, code = f"did not begin to answer within {own:g} s", "upstream_timeout"
            else:
                text, code = "did not begin to answer in the time that was left", DEADLINE_EXCEEDED
            raise UpstreamFailure(ErrorDetail(f"the upstream {text}", code=code)) from None

    async def _attempt(
        self, attempt: _Attempt, observer: AttemptObserver, remaining: float
    ) -> Answer | StreamStart:
        backend = self._backends[attempt.step.deployment.provider]
        try:
            response = await backend.send(
                attempt.upstream_request(remaining, observer.attempt_placed)
            )
        except Overloaded as error:
            wait = {"retry-after": str(error.retry_after)}
            detail = ErrorDetail(str(error), code=error.code)
            raise UpstreamFailure(detail, headers=wait, where="send") from error
        except BackendError as error:
            detail = ErrorDetail(str(error), code=error.code)
            raise UpstreamFailure(detail, where="send") from error
        answered = False
        try:
            if response.status != 200:
                raise await self._refusal(response, attempt.translation)
            if attempt.call.request.stream:
                start = await self._start_stream(response, attempt, observer)
                answered = True
                return start
            return await self._whole(response, attempt.translation)
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
        self, response: UpstreamResponse, attempt: _Attempt, observer: AttemptObserver
    ) -> StreamStart:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = await response.read(MAX_ERROR_BYTES)
            raise self._failure(
                attempt.translation.read_error(body)
                or ErrorDetail(
                    "the upstream did not answer with a stream", code="upstream_invalid_response"
                )
            )
        stream = attempt.translation.open_stream()
        observer.attempt_streams(stream)
        head: list[bytes] = []
        while not (stream.has_content or stream.done):
            piece = await response.next()
            head.append(stream.feed(piece) if piece else stream.end())
            if stream.failure is not None and not stream.has_content:
                raise self._failure(stream.failure)
        return StreamStart(
            head=b"".join(head),
            stream=stream,
            response=response,
            deployment=attempt.step.deployment,
            prompt_characters=attempt.call.request.prompt_characters,
            clean=self.clean,
            permit=attempt.permit,
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

    def _learn(self, failure: Failure, attempt: _Attempt) -> None:
        """What a failure means for those who are asked next."""
        verdict = judge(failure)
        if verdict.counts:
            attempt.permit.failed()
        else:
            attempt.permit.abandoned()
        rest, deployment = verdict.rest, attempt.step.deployment
        if rest is None:
            return
        credential = attempt.credential
        of_credential = rest.scope == "credential" or rest.limited or not verdict.counts
        if credential is not None and of_credential:
            scope = None if rest.scope == "credential" else deployment.name
            held = self._credentials[deployment.provider]
            held.rest(credential, rest.seconds, scope, rest.limited)
        else:
            self._breakers.cool(deployment.name, rest.seconds, rest.limited)

    def _rests(self, deployment: Deployment) -> Rest | None:
        """How long a deployment rests: by its breaker, or for want of a credential."""
        held = self._credentials.get(deployment.provider)
        found = (
            self._breakers.resting(deployment.name),
            None if held is None else held.resting(deployment.name),
        )
        return max(
            (rest for rest in found if rest is not None),
            key=lambda rest: rest.seconds,
            default=None,
        )


class _Attempt(msgspec.Struct, frozen=True):
    """One upstream call."""

    step: Step
    call: Call
    translation: Translation
    credential: Credential | None
    permit: Permit

    def upstream_request(
        self, remaining: float, placed: Callable[[Placed], None]
    ) -> UpstreamRequest:
        """As the backend takes it, which has so many seconds to begin to answer."""
        return UpstreamRequest(
            endpoint=self.translation.endpoint,
            model=self.step.deployment.model,
            body=self.translation.body,
            stream=self.call.request.stream,
            request_id=self.call.request_id,
            headers=self.translation.headers,
            credential=None if self.credential is None else self.credential.secret,
            team_id=self.call.team_id,
            tier=self.call.tier,
            priority=self.call.priority,
            max_tokens=self.call.request.max_tokens,
            remaining=remaining,
            placed=placed,
        )


def _outcome(
    end: AllResting | GiveUp, failure: UpstreamFailure | None, refused: InvalidRequest | None
) -> Exception:
    """What is raised when no target answered."""
    if failure is not None:
        if isinstance(end, AllResting):
            failure.resting = end
        else:
            failure.resting = end.resting
        return failure
    if refused is not None:
        return refused
    if isinstance(end, AllResting):
        return TargetsResting(end.seconds, end.limited)
    if end.resting is not None:
        return TargetsResting(end.resting.seconds, end.resting.limited)
    return UpstreamFailure(ErrorDetail("no deployment takes traffic", code="no_deployment"))


#: Our own words for failures that come without a status; an upstream's words are not counted by.
_OWN_CODES = frozenset(
    {
        DEADLINE_EXCEEDED,
        "no_deployment",
        "pool_failed",
        "pool_overloaded",
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
