"""Comparisons: what one tier answered is asked of the other as well, and a judge model scores both
answers.

A comparison begins when the request has been answered, and is never in its way: its calls are
batch requests of the lowest priority, without fallbacks. Both calls are charged as requests of
their own, and the day's budget is asked first. What was asked and answered is seen by the two
models and kept nowhere, unless the team keeps prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec

from sluice.backends.base import BackendError, Endpoint
from sluice.billing.prices import Price
from sluice.gateway.learning.judging import JUDGE_TOKENS, judge_body, read_verdict
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.side_calls import Payer, SideCalls, Spent
from sluice.gateway.learning.spending import DailyBudget
from sluice.router.catalog import Model
from sluice.router.dispatch import TargetsResting, UpstreamFailure
from sluice.router.translation import Call
from sluice.wire.errors import InvalidRequest
from sluice.wire.request import Request, read_request
from sluice.wire.usage import Usage, estimate_tokens

#: Output that is reckoned with where a request has no bound, in tokens.
_UNBOUNDED_TOKENS = 4_096

Outcome = Literal["compared", "over_budget", "no_answer", "no_verdict", "failed", "dropped"]

#: What of a request's members says what was asked.
_ASKED = ("instructions", "system", "messages", "input", "prompt")


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
        calls: SideCalls,
        judge: Callable[[], Model | None],
        prices: Mapping[str, Price],
        budget: DailyBudget,
        labels: Labels,
    ) -> None:
        """Args:
        calls: ask models.
        judge: gives the judge; None while the catalogue has none.
        prices: by model name.
        budget: see there.
        labels: keeps what comes of it.
        """
        self._calls = calls
        self._judge = judge
        self._prices = prices
        self._budget = budget
        self._labels = labels

    async def compare(self, answered: Answered, payer: Payer) -> Outcome:
        """Make one comparison.

        Raises:
            asyncpg.PostgresError, OSError: the database is away.
            UsageNotDurable: a charge is not.
        """
        judge = self._judge()
        if judge is None:
            return "failed"
        most = self._most(answered, judge)
        held = await self._budget.reserve(most)
        if held is None:
            return "over_budget"
        spent = Spent()
        try:
            return await self._compare(answered, judge, payer, spent)
        except (TimeoutError, asyncio.CancelledError) as cut:
            # who was cut off in the middle may have cost more than is known
            spent.nano_usd = max(spent.nano_usd, most)
            if isinstance(cut, TimeoutError):
                return "failed"
            raise
        except (UpstreamFailure, TargetsResting, InvalidRequest, BackendError):
            return "failed"
        finally:
            await held.settle(spent.nano_usd)

    async def _compare(
        self, answered: Answered, judge: Model, payer: Payer, spent: Spent
    ) -> Outcome:
        call = answered.call
        alone = msgspec.structs.replace(call.request, disable_fallbacks=True)
        other = await self._calls.ask(
            answered.other, msgspec.structs.replace(call, request=alone), payer, spent
        )
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
        said = await self._calls.ask(judge, question, payer, spent)
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
