"""Comparisons: what one tier answered is asked of the other as well, and a judge model scores both
answers.

A comparison begins when the request has been answered, and is never in its way: its calls are
batch requests of the lowest priority, without fallbacks. Both calls are charged as requests of
their own, and the day's budget is asked first. What was asked and answered is seen by the two
models and kept nowhere, unless the team keeps prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

import uuid_utils

from sluice.backends.base import BackendError, Endpoint, Placed
from sluice.billing.events import UsageEvent
from sluice.billing.prices import Price
from sluice.billing.recorder import Charges
from sluice.gateway.learning.answer_text import answer_text
from sluice.gateway.learning.judging import JUDGE_TOKENS, judge_body, read_verdict
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.spending import DailyBudget
from sluice.router.catalog import Model
from sluice.router.dispatch import Dispatcher, StreamStart, TargetsResting, UpstreamFailure
from sluice.router.plan import Route, Step
from sluice.router.translation import Call
from sluice.wire.codec import StreamCodec
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request, read_request
from sluice.wire.usage import Usage, estimate_tokens

#: Seconds for each of the two calls.
CALL_SECONDS = 180.0

#: Output that is reckoned with where a request has no bound, in tokens.
_UNBOUNDED_TOKENS = 4_096

Outcome = Literal["compared", "over_budget", "no_answer", "no_verdict", "failed", "dropped"]

#: What of a request's members says what was asked.
_ASKED = ("instructions", "system", "messages", "input", "prompt")


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for the calls."""

    team_id: str
    key_id: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered, to be compared.

    Attributes:
        call: as it was dispatched.
        team_id: whose it was.
        text: of the answer.
        strong: whether it is the strong tier's.
        other: a model of the other tier.
        prompt: to be kept with the label, where the team keeps prompts.
    """

    call: Call
    team_id: str
    text: str
    strong: bool
    other: Model
    prompt: str | None


class Comparisons:
    """Makes comparisons."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        judge: Callable[[], Model | None],
        prices: Mapping[str, Price],
        charges: Charges,
        budget: DailyBudget,
        labels: Labels,
        gateway: str,
    ) -> None:
        """Args:
        dispatcher: of the requests themselves.
        judge: gives the judge; None while the catalogue has none.
        prices: by model name.
        charges: takes the usage events.
        budget: see there.
        labels: keeps what comes of it.
        gateway: this process's id.
        """
        self._dispatcher = dispatcher
        self._judge = judge
        self._prices = prices
        self._charges = charges
        self._budget = budget
        self._labels = labels
        self._gateway = gateway

    async def compare(self, answered: Answered, payer: Payer) -> Outcome:
        """Make one comparison.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
        """
        judge = self._judge()
        if judge is None:
            return "failed"
        most = self._most(answered, judge)
        held = await self._budget.reserve(most)
        if held is None:
            return "over_budget"
        spent = _Spent()
        try:
            return await self._compare(answered, judge, payer, spent)
        except TimeoutError:  # who was cut off in the middle may have cost all of it
            spent.nano_usd = max(spent.nano_usd, most)
            return "failed"
        except (UpstreamFailure, TargetsResting, InvalidRequest, BackendError):
            return "failed"
        finally:
            await held.settle(spent.nano_usd)

    async def _compare(
        self, answered: Answered, judge: Model, payer: Payer, spent: _Spent
    ) -> Outcome:
        call = answered.call
        alone = replace(call.request, disable_fallbacks=True)
        other = await self._ask(answered.other, replace(call, request=alone), payer, spent)
        if other is None:
            return "no_answer"
        strong, weak = (answered.text, other) if answered.strong else (other, answered.text)
        body = judge_body(judge.name, call.request_id, asked_text(call), strong, weak)
        question = Call(
            Endpoint.CHAT,
            read_request(body, "messages"),
            "",
            cache_salt=call.cache_salt,
            team_id=call.team_id,
        )
        said = await self._ask(judge, question, payer, spent)
        verdict = None if said is None else read_verdict(call.request_id, said)
        if verdict is None:
            return "no_verdict"
        await self._labels.compared(
            UUID(answered.team_id),
            UUID(call.request_id),
            verdict.strong,
            verdict.weak,
            answered.prompt,
        )
        return "compared"

    async def _ask(self, model: Model, call: Call, payer: Payer, spent: _Spent) -> str | None:
        """The text of a model's answer, which is charged; None: it has none."""
        call = replace(
            call,
            request_id=str(uuid_utils.uuid7()),
            created=int(time.time()),
            tier="batch",
            priority="low",
        )
        began, time_us, seen = time.monotonic(), time.time_ns() // 1000, _Seen()
        async with asyncio.timeout(CALL_SECONDS):
            answer = await self._dispatcher.dispatch(Route(model), call, seen)
            if isinstance(answer, StreamStart):
                body, usage = await _read(answer), answer.stream.usage(answer.prompt_characters)
            else:
                body, usage = answer.body, answer.usage
        cost = self._prices.get(model.name, Price()).cost(usage, batch=True)
        spent.nano_usd += cost
        event = UsageEvent(
            request_id=call.request_id,
            time_us=time_us,
            team_id=payer.team_id,
            key_id=payer.key_id,
            endpoint=call.endpoint.value,
            model=model.name,
            model_used=model.name,
            deployment=seen.deployment,
            tier="batch",
            status="error" if body is None else "ok",
            error_code="upstream_error" if body is None else None,
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            cost_nano_usd=cost,
            latency_us=int((time.monotonic() - began) * 1e6),
            attempts=seen.attempts,
            estimated=usage.estimated,
            gateway=self._gateway,
        )
        await asyncio.shield(self._charges.submit(event))
        return None if body is None else answer_text(call.endpoint, body, call.request.stream)

    def _most(self, answered: Answered, judge: Model) -> int:
        """What a comparison may cost at most, as far as characters tell tokens."""
        request = answered.call.request
        bound = request.max_tokens or _UNBOUNDED_TOKENS
        asked = estimate_tokens(request.prompt_characters)
        judged = asked + estimate_tokens(len(answered.text)) + bound
        calls = (
            (answered.other, Usage(asked, output_tokens=bound)),
            (judge, Usage(judged, output_tokens=JUDGE_TOKENS)),
        )
        return sum(
            self._prices.get(model.name, Price()).cost(usage, batch=True) for model, usage in calls
        )


def asked_text(call: Call) -> str:
    """What a request asked, as JSON, for a judge to read."""
    members: Request = call.request
    return "\n".join(
        bytes(members.members[name]).decode(errors="replace")
        for name in _ASKED
        if name in members.members
    )


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


@dataclass(slots=True)
class _Spent:
    nano_usd: int = 0


class _Seen:
    """Remembers which deployment answered; see `AttemptObserver`."""

    def __init__(self) -> None:
        self.deployment = ""
        self.attempts = 0

    def attempt_started(self, step: Step, dropped: tuple[str, ...]) -> None:
        self.deployment = step.deployment.name
        self.attempts = step.number

    def attempt_placed(self, placed: Placed) -> None: ...

    def attempt_streams(self, stream: StreamCodec) -> None: ...

    def attempt_ended(self, step: Step, reason: str) -> None: ...
