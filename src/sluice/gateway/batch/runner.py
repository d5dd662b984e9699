"""The runner: one item through the pipeline, as the request of the key that made its batch.

The pipeline is the one of interactive requests. Two things differ: the caller is known by the
batch's key and not by a credential, and the usage event is not sent to the ledger when the answer
ends, but kept for the transaction that stores the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sluice.billing.events import UsageEvent
from sluice.gateway.auth import KeyRing, Principal
from sluice.gateway.batch.items import Item
from sluice.gateway.exchange import Exchange, Outcome
from sluice.gateway.lifeline import Cut
from sluice.router.retries import retry_after

#: Who stood in the way of a request that was refused for want of room: the team's own limits, or
#: the model's deployments. `gateway`: something of ours is away. None: it was not refused for that.
Refuser = Literal["team", "model", "gateway"]

#: The pipeline.
Serve = Callable[[Exchange], Awaitable[None]]

_TIER = (b"x-tier", b"batch")

#: Why a run may be ended from outside. Deadlines are not among them: they are answers.
_UNWANTED = (Cut.CLIENT_GONE, Cut.SHUTDOWN)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the pipeline answered.

    Attributes:
        status: HTTP status; 0: it was cut off, and there is none.
        body: JSON text.
        event: the usage event that is due with it; None where no upstream was called.
        tried: an upstream was called.
        refuser: see there.
        retry_after: seconds, where the answer says so.
        hopeless: the answer says that trying again is of no use.
        queued: seconds that it waited in the queue of a pool.
    """

    status: int
    body: bytes = b""
    event: UsageEvent | None = None
    tried: bool = True
    refuser: Refuser | None = None
    retry_after: float | None = None
    hopeless: bool = False
    queued: float = 0.0


class HeldCharges:
    """Takes usage events like a recorder, and keeps each until its answer is stored with it."""

    def __init__(self) -> None:
        self._events: dict[str, UsageEvent] = {}

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        """See `Recorder.submit`. That the event gets lost with the answer is what is wanted."""
        self._events[event.request_id] = event
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def take(self, request_id: str) -> UsageEvent | None:
        """The event of a request, once."""
        return self._events.pop(request_id, None)


class Runner:
    """Runs items; see the module."""

    def __init__(self, serve: Serve, keys: KeyRing, charges: HeldCharges) -> None:
        """Args:
        serve: the pipeline, whose usage events go to `charges`.
        """
        self._serve = serve
        self._keys = keys
        self._charges = charges

    def start(self, item: Item, body: bytes) -> Run:
        """Begin to run an item, in the task that goes on with it.

        Args:
            body: the request's, JSON text.
        """
        return Run(self._serve, self._charges, item, body, self._keys.holder(str(item.key_id)))


class Run:
    """One request, with this object for its client."""

    def __init__(
        self,
        serve: Serve,
        charges: HeldCharges,
        item: Item,
        body: bytes,
        principal: Principal | None,
    ) -> None:
        self._serve = serve
        self._charges = charges
        headers = [_TIER, (b"x-priority", item.priority.encode())]
        scope = {"method": "POST", "headers": headers}
        self._exchange = Exchange(item.endpoint, scope, self._receive, self._send)
        self._exchange.id = str(item.request_id)
        self._exchange.principal = principal
        self._body: bytes | None = body
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    def cut(self) -> None:
        """Nobody wants the answer any more."""
        self._exchange.lifeline.cut(Cut.CLIENT_GONE)

    async def answer(self) -> Answer:
        """Serve the request, and say what came."""
        exchange = self._exchange
        try:
            await self._serve(exchange)
        finally:
            event = self._charges.take(exchange.id)
        if exchange.outcome == "ok" and self._status != 200:
            event = None  # what was generated could not be delivered
        placed = exchange.placed
        cut = exchange.lifeline.cut_by in _UNWANTED and exchange.outcome != "ok"
        return Answer(
            status=0 if cut else self._status,
            body=b"".join(self._parts),
            event=event,
            tried=exchange.attempts > 0,
            refuser=refuser(self._status, exchange.outcome, exchange.error_code),
            retry_after=retry_after(self._headers, datetime.now(UTC)),
            hopeless=self._headers.get("x-should-retry") == "false",
            queued=0.0 if placed is None else placed.queued,
        )

    async def _receive(self) -> dict[str, Any]:
        """The body; then nothing, for as long as it takes."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            self._parts.append(message.get("body", b""))


def refuser(status: int, outcome: Outcome, error_code: str | None) -> Refuser | None:
    """Who had no room for a request; see `Refuser`.

    Args:
        status, outcome, error_code: how its exchange ended. What was refused before a deployment
            was looked for has no error code there.
    """
    if status not in (429, 503):
        return None
    if error_code is not None:
        return "model"
    return "team" if outcome == "limited" else "gateway"
