"""Requests with an `Idempotency-Key`: one of them is answered, and all of them hear the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from sluice.gateway.auth import Principal
from sluice.gateway.errors import GatewayError
from sluice.gateway.exchange import Exchange, Send
from sluice.gateway.idempotency.follower import follow, too_large
from sluice.gateway.idempotency.generation import Asked, Generation, Serve, Terms
from sluice.gateway.idempotency.key import entry_name, fingerprint, unkeyed, waits
from sluice.gateway.idempotency.reel import Reel
from sluice.gateway.idempotency.refusals import in_progress, reused
from sluice.gateway.idempotency.tapes import Claim, Held, Tapes, TapesAway
from sluice.gateway.idempotency.watch import Watch
from sluice.gateway.intake import Received
from sluice.gateway.meter import Meter
from sluice.wire.errors import ErrorDetail

#: How long a process that stops waits for its generations to put down how they ended, in seconds.
STOP_SECONDS = 3.0

#: Marks an answer that is served without protection, while Redis is away.
UNPROTECTED = (b"idempotency-unprotected", b"true")

_log = structlog.get_logger("sluice.idempotency")


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    """Attributes:
    terms: see there.
    redis_away: `closed`: requests with a key are refused while they can't be protected; `open`:
        they are served, marked, and may be answered twice.
    """

    terms: Terms
    redis_away: Literal["closed", "open"]


class KeyedAnswers:
    """Answers requests that have a key; see the module."""

    def __init__(
        self,
        tapes: Tapes,
        meter: Meter,
        config: IdempotencyConfig,
        observe: Callable[[str], None],
    ) -> None:
        """Args:
        observe: is told what each request with a key came to, by a word of a small set.
        """
        self._tapes = tapes
        self._meter = meter
        self._config = config
        self._observe = observe
        self._generations: dict[str, Generation] = {}
        self._watches: dict[str, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Let generations that are over put down how they ended. The pipeline has been cut off."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def answer(
        self, exchange: Exchange, principal: Principal, received: Received, key: str, serve: Serve
    ) -> bool:
        """Answer a request; False where it is to be served like one without a key.

        Args:
            exchange: whose client hears the answer.
            principal: who asks.
            received: what.
            key: the request's key.
            serve: the pipeline, for the one generation.

        Raises:
            GatewayError: 422 the key was used for another request; 409 its answer is not ready and
                the client does not wait, or was too large to be kept; 503 Redis is away, or the
                generation was lost before this client got anything.
        """
        name = entry_name(principal.team_id, exchange.endpoint, key)
        claim = Claim(name, fingerprint(received), exchange.id)
        try:
            # a client that leaves in this moment leaves its generation behind, as at any other
            claiming = asyncio.ensure_future(self._claim(claim, exchange, received, serve))
            claiming.add_done_callback(_hear)
            held = await asyncio.shield(claiming)
        except TapesAway as error:
            return self._unprotected(exchange, error)
        if held.finding == "running" and not waits(exchange.headers):
            self._observe("in_progress")
            raise in_progress()
        self._observe(held.finding)
        if held.finding != "claimed" and not principal.policy.allows_model(received.request.model):
            raise GatewayError.model_forbidden(received.request.model)
        if held.finding == "reused":
            raise reused()
        if held.finding == "large":
            raise too_large()
        _log.info(
            "request with a key",
            request_id=exchange.id,
            original_request_id=held.owner,
            team_id=principal.team_id,
            finding=held.finding,
        )
        reel = self._reel(held.owner)
        await follow(exchange, reel, held.owner, replayed=held.finding == "done")
        return True

    async def _claim(
        self, claim: Claim, exchange: Exchange, received: Received, serve: Serve
    ) -> Held:
        """Find out who answers; begin to, if it is us."""
        held = await self._tapes.claim(claim)
        if held.finding == "claimed":
            asked = Asked(
                exchange.endpoint,
                unkeyed(exchange.headers),
                received.body,
                exchange.time_us,
                exchange.started,
            )
            generation = Generation(claim, asked, self._tapes, self._meter, self._config.terms)
            self._generations[claim.owner] = generation
            self._spawn(self._generate(claim.owner, generation, serve))
        return held

    async def _generate(self, owner: str, generation: Generation, serve: Serve) -> None:
        try:
            await generation.run(serve)
        finally:
            del self._generations[owner]

    def _reel(self, owner: str) -> Reel:
        """The reel of a tape. The caller listens to it before anything else happens."""
        generation = self._generations.get(owner)
        if generation is not None:
            return generation.reel
        watch = self._watches.get(owner)
        if watch is None:
            watch = Watch(owner, self._tapes, self._config.terms.lease_seconds)
            self._watches[owner] = watch
            self._spawn(self._look_on(owner, watch))
        return watch.reel

    async def _look_on(self, owner: str, watch: Watch) -> None:
        try:
            await watch.run()
        finally:
            del self._watches[owner]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unprotected(self, exchange: Exchange, error: TapesAway) -> bool:
        self._observe("away")
        _log.warning("key can't be held", request_id=exchange.id, reason=str(error))
        if self._config.redis_away == "closed":
            raise _away() from error
        exchange.send = _marked(exchange.send)
        return False


def _hear(claiming: asyncio.Future[Held]) -> None:
    """A claim that failed after its client left has nobody to tell."""
    if not claiming.cancelled():
        claiming.exception()


def _marked(send: Send) -> Send:
    async def marked(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append(UNPROTECTED)
        await send(message)

    return marked


def _away() -> GatewayError:
    detail = ErrorDetail(
        "Idempotency keys can't be kept now: Redis can't be reached.",
        "service_unavailable_error",
        code="idempotency_unavailable",
    )
    return GatewayError(503, detail, {"retry-after": "1"})
