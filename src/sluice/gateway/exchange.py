"""An exchange: one request on its way through the pipeline, and what is known of it so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
import uuid_utils

from sluice import __version__
from sluice.backends.base import Endpoint, Placed
from sluice.gateway.auth import Principal
from sluice.gateway.lifeline import Lifeline
from sluice.gateway.quotas.admission import Reservation
from sluice.router.auto.choice import AutoChoice
from sluice.router.catalog import Deployment, Model, Tier
from sluice.router.dispatch import StreamStart
from sluice.wire.codec import StreamCodec
from sluice.wire.request import Request
from sluice.wire.usage import Usage

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

Outcome = Literal["ok", "client_error", "limited", "upstream_error", "internal_error", "cancelled"]

HEARTBEAT = b": keep-alive\n\n"
SERVER = f"sluice/{__version__}".encode()


class Admitted(msgspec.Struct, frozen=True):
    """A request that may go upstream."""

    principal: Principal
    model: Model
    request: Request
    tier: Tier


class Exchange:
    """State of one request. Times are seconds on the monotonic clock unless said otherwise.

    Attributes:
        id: UUIDv7; the response's `x-request-id` and the usage record's key.
        time_us: when it came, microseconds since the epoch.
        principal: who asks, where that is known without a credential.
        team_id, model_used: for logs and headers, as soon as they are known.
        choice: why it goes where it goes, where `auto` was asked for.
        admitted: once it may go upstream.
        heard: what of a streamed answer was sent, where somebody looks at it afterwards.
        deployment, attempts, attempt_started_at: the present or last upstream call.
        dropped: what the client offered and the upstream can't have.
        placed: where in a pool it went last.
        attempt_log: each call's deployment and how it went.
        start: a stream that has begun; its upstream response is let go in the end.
        stream: the stream's codec, which knows what was used so far.
        charged: its usage event has been handed over, or is somebody else's to hand over.
        confirm: is awaited before it is charged, where it may have become somebody else's.
        reservation: what it was let in with, where the caller has limits.
        limit_headers: what is left of the caller's limits.
    """

    def __init__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        self.endpoint = endpoint
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.method: str = scope["method"]
        self.receive = receive
        self.send = send
        self.id = str(uuid_utils.uuid7())
        self.time_us = time.time_ns() // 1000
        self.started = time.monotonic()
        self.lifeline = Lifeline(self._heartbeat)
        self._heartbeats: set[asyncio.Future[None]] = set()
        self.principal: Principal | None = None
        self.team_id = ""
        self.model_used: str | None = None
        self.choice: AutoChoice | None = None
        self.admitted: Admitted | None = None
        self.heard: list[bytes] | None = None
        self.deployment: Deployment | None = None
        self.attempts = 0
        self.attempt_started_at = 0.0
        self.dropped: tuple[str, ...] = ()
        self.placed: Placed | None = None
        self.attempt_log: list[str] = []
        self.start: StreamStart | None = None
        self.stream: StreamCodec | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.response_started = False
        self.charged = False
        self.confirm: Callable[[], Awaitable[None]] | None = None
        self.reservation: Reservation | None = None
        self.limit_headers: Sequence[tuple[bytes, bytes]] = ()
        self.outcome: Outcome = "internal_error"
        self.error_code: str | None = None
        self.usage = Usage()

    def header(self, name: bytes) -> bytes | None:
        """The value of a request header, by lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def status(self) -> str:
        """The outcome as records have it: `ok`, `cancelled` or `error`."""
        return self.outcome if self.outcome in ("ok", "cancelled") else "error"

    @property
    def deployment_name(self) -> str:
        """The deployment that was called last; empty before the first call."""
        return "" if self.deployment is None else self.deployment.name

    def ended(self, outcome: Outcome, usage: Usage, error_code: str | None = None) -> None:
        """Note how it ended."""
        self.outcome = outcome
        self.error_code = error_code
        self.usage = usage

    async def start_response(
        self, status: int, content_type: bytes, more: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send status and headers."""
        self.response_started = True
        elapsed = int((time.monotonic() - self.started) * 1000)
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", self.id.encode()),
            (b"openai-processing-ms", b"%d" % elapsed),
            (b"openai-version", b"2020-10-01"),
            (b"server", SERVER),
            (b"x-content-type-options", b"nosniff"),
            *self.limit_headers,
            *more,
        ]
        if self.endpoint is Endpoint.MESSAGES:
            headers.append((b"request-id", self.id.encode()))
        if self.model_used is not None:
            headers.append((b"x-model-used", self.model_used.encode()))
        if self.choice is not None:
            reason = self.choice.reason(self.model_used, self.attempts)
            headers.append((b"x-route-reason", reason.encode()))
        if self.dropped:
            headers.append((b"x-dropped-tools", ", ".join(self.dropped).encode()))
        if self.placed is not None:
            headers.append((b"x-queue-ms", b"%d" % int(self.placed.queued * 1000)))
            if self.placed.replica is not None:
                headers.append((b"x-replica", self.placed.replica.encode()))
        if self.attempt_log:
            headers.append((b"x-attempts", ", ".join(self.attempt_log).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def respond(
        self, status: int, body: bytes, more: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a whole JSON response."""
        length = (b"content-length", b"%d" % len(body))
        await self.start_response(status, b"application/json", (length, *more))
        await self.send({"type": "http.response.body", "body": body})

    async def send_part(self, body: bytes) -> None:
        """Send a part of a response that has begun."""
        if self.heard is not None:
            self.heard.append(body)
        if body:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})

    def _heartbeat(self) -> None:
        """A comment, for clients and proxies that drop silent connections."""
        beat = asyncio.ensure_future(self.send_part(HEARTBEAT))
        self._heartbeats.add(beat)
        beat.add_done_callback(self._heartbeats.discard)
