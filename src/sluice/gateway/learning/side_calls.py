"""Calls of the gateway's own beside the requests of callers: nobody waits for them, and they are
charged as requests of their own, whatever becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import uuid_utils

from sluice.backends.base import BackendError, Placed
from sluice.billing.events import UsageEvent
from sluice.billing.prices import Price
from sluice.billing.recorder import Charges
from sluice.gateway.learning.answer_text import answer_text
from sluice.gateway.output_rates import OutputRates
from sluice.router.catalog import Model
from sluice.router.dispatch import Dispatcher, StreamStart
from sluice.router.plan import Route, Step
from sluice.router.translation import Call
from sluice.wire.codec import StreamCodec
from sluice.wire.usage import Usage

#: Seconds for a call.
CALL_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for the calls."""

    team_id: str
    key_id: str


@dataclass(slots=True)
class Spent:
    """What some calls have cost, in nano-USD."""

    nano_usd: int = 0


class SideCalls:
    """Asks models; see the module."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        prices: Mapping[str, Price],
        charges: Charges,
        rates: OutputRates,
        gateway: str,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """Args:
        dispatcher: of the requests themselves.
        prices: by model name.
        charges: takes the usage events.
        rates: tell what a call that is cut off had come to.
        gateway: this process's id.
        call_seconds: for a call.
        """
        self._dispatcher = dispatcher
        self._prices = prices
        self._charges = charges
        self._rates = rates
        self._gateway = gateway
        self._call_seconds = call_seconds

    async def ask(self, model: Model, call: Call, payer: Payer, spent: Spent) -> str | None:
        """The text of a model's answer; None: it has none. The call is a batch request of the
        lowest priority.

        One that is cut off, by its time or by this process's end, is charged like an interactive
        request that is cut off: what has come of a stream, else what is likely.

        Args:
            spent: the call's cost is added to it.

        Raises:
            TimeoutError: it took too long.
            UpstreamFailure, TargetsResting, InvalidRequest, BackendError: see `Dispatcher`.
            UsageNotDurable: the charge is not.
        """
        call = msgspec.structs.replace(
            call,
            request_id=str(uuid_utils.uuid7()),
            created=int(time.time()),
            tier="batch",
            priority="low",
        )
        asked = _Asked(model, call, payer)
        try:
            async with asyncio.timeout(self._call_seconds):
                body, usage = await self._answer(asked)
        except (TimeoutError, asyncio.CancelledError) as cut:
            if asked.attempts:
                code = "upstream_timeout" if isinstance(cut, TimeoutError) else "shutting_down"
                usage = self._rates.used(
                    asked.deployment, asked.seconds, call.request, asked.stream
                )
                await self._charge(asked, usage, code, spent)
            raise
        await self._charge(asked, usage, None if body is not None else "upstream_error", spent)
        return None if body is None else answer_text(call.endpoint, body, call.request.stream)

    async def _answer(self, asked: _Asked) -> tuple[bytes | None, Usage]:
        answer = await self._dispatcher.dispatch(Route(asked.model), asked.call, asked)
        if isinstance(answer, StreamStart):
            body = await _read(answer)
            return body, answer.stream.usage(answer.prompt_characters)
        self._rates.learn(asked.deployment, asked.seconds, answer.usage.output_tokens)
        return answer.body, answer.usage

    async def _charge(
        self, asked: _Asked, usage: Usage, error_code: str | None, spent: Spent
    ) -> None:
        model, call, payer = asked.model, asked.call, asked.payer
        cost = self._prices.get(model.name, Price()).cost(usage, batch=True)
        spent.nano_usd += cost
        event = UsageEvent(
            request_id=call.request_id,
            time_us=asked.time_us,
            team_id=payer.team_id,
            key_id=payer.key_id,
            endpoint=call.endpoint.value,
            model=model.name,
            model_used=model.name,
            deployment=asked.deployment,
            tier="batch",
            status="ok" if error_code is None else "error",
            error_code=error_code,
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            cost_nano_usd=cost,
            latency_us=int((time.monotonic() - asked.began) * 1e6),
            attempts=asked.attempts,
            estimated=usage.estimated,
            gateway=self._gateway,
        )
        await asyncio.shield(self._charges.submit(event))


async def _read(start: StreamStart) -> bytes | None:
    """All that a stream gives; None: it broke."""
    parts = [start.head]
    stream = start.stream
    try:
        while not (stream.done or stream.failure is not None):
            piece = await start.response.next()
            parts.append(stream.feed(piece) if piece else stream.end())
    except BackendError:
        start.permit.failed()
        return None
    finally:
        start.response.close()
    return None if stream.failure is not None else b"".join(parts)


class _Asked:
    """A call, and what became of it until now; see `AttemptObserver`."""

    def __init__(self, model: Model, call: Call, payer: Payer) -> None:
        self.model = model
        self.call = call
        self.payer = payer
        self.began = time.monotonic()
        self.time_us = time.time_ns() // 1000
        self.deployment = ""
        self.attempts = 0
        self.attempt_started_at = self.began
        self.stream: StreamCodec | None = None

    @property
    def seconds(self) -> float:
        """Since the last attempt began."""
        return time.monotonic() - self.attempt_started_at

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None:
        self.deployment = step.deployment.name
        self.attempts = step.number
        self.attempt_started_at = time.monotonic()
        self.stream = None

    def attempt_placed(self, placed: Placed) -> None: ...

    def attempt_streams(self, stream: StreamCodec) -> None:
        self.stream = stream

    def attempt_ended(self, step: Step, reason: str) -> None: ...
