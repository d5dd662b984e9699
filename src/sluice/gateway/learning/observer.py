"""What a gateway learns from the answers of its own `auto` requests, after they have been sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from sluice.billing.ledger import DATABASE_ERRORS
from sluice.billing.recorder import UsageNotDurable
from sluice.gateway.auth import Principal
from sluice.gateway.exchange import Exchange
from sluice.gateway.learning.answer_text import answer_text
from sluice.gateway.learning.comparison import Answered, Comparisons, Outcome
from sluice.gateway.learning.labels import Labels, Signal
from sluice.gateway.learning.side_calls import Payer
from sluice.gateway.learning.signals import shown, truncated, wanted_schema
from sluice.gateway.relay import Ending, WholeEnding
from sluice.router.auto.choice import AutoChoice, Course
from sluice.router.catalog import Model
from sluice.router.complexity.view import read_view
from sluice.router.policy import takes_part
from sluice.router.translation import Call

#: Answers that are looked at, at a time; more of them are let go.
AT_A_TIME = 8

_log = structlog.get_logger("sluice.router")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests are compared, and who pays.

    Attributes:
        judge: the judge's name.
        share: of the requests, in percent.
        payer: who pays for a caller's.
    """

    judge: str
    share: float
    payer: Callable[[Principal], Payer | None]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A comparison that is due."""

    answered: Answered
    payer: Payer


class AnswerObserver:
    """Looks at answers."""

    def __init__(
        self,
        labels: Labels,
        comparisons: Comparisons | None,
        sampling: Sampling | None,
        on_signal: Callable[[Signal], None],
        on_comparison: Callable[[Outcome], None],
    ) -> None:
        """Args:
        labels: keeps what is found.
        comparisons: makes them; None: there are none.
        sampling: likewise.
        on_signal: is told of each signal.
        on_comparison: is told what each comparison came to.
        """
        self._labels = labels
        self._comparisons = comparisons
        self._sampling = sampling
        self._on_signal = on_signal
        self._on_comparison = on_comparison
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, exchange: Exchange, call: Call) -> None:
        """Before the answer: keep what is streamed, where it is going to be looked at."""
        choice = exchange.choice
        if choice is None:
            return
        is_json = "json_schema" in choice.course.capabilities
        if self._takes_part(choice, exchange) or (
            is_json and wanted_schema(call.request) is not None
        ):
            exchange.heard = []

    def answered(self, exchange: Exchange, call: Call, ending: Ending) -> None:
        """After the answer: look at it in the background."""
        choice = exchange.choice
        if choice is None or exchange.outcome != "ok" or exchange.admitted is None:
            return
        if exchange.heard is None and not truncated(call.request, exchange.usage):
            return  # as nearly all: it costs them nothing
        if len(self._tasks) >= AT_A_TIME:
            if self._takes_part(choice, exchange):
                self._on_comparison("dropped")
            return
        work = self._look(exchange, exchange.admitted.principal, choice, call, ending)
        task = asyncio.create_task(work, name="answer-observer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Let go of what is being looked at. What was asked of models for it is charged first."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _takes_part(self, choice: AutoChoice, exchange: Exchange) -> bool:
        sampling = self._sampling
        return sampling is not None and takes_part(
            f"comparison {choice.course.alias}", exchange.id, sampling.share
        )

    async def _look(
        self,
        exchange: Exchange,
        principal: Principal,
        choice: AutoChoice,
        call: Call,
        ending: Ending,
    ) -> None:
        text = None
        if isinstance(ending, WholeEnding) and exchange.heard is not None:
            text = answer_text(call.endpoint, ending.body, streamed=False)
        elif exchange.heard is not None:
            text = answer_text(call.endpoint, b"".join(exchange.heard), streamed=True)
        try:
            signals = await asyncio.to_thread(shown, call.request, exchange.usage, text)
            for signal in signals:
                self._on_signal(signal)
                await self._labels.signal(UUID(principal.team_id), UUID(exchange.id), signal, 0.0)
            due = self._due(exchange, principal, choice, call, text)
            if due is not None and self._comparisons is not None:
                self._on_comparison(await self._comparisons.compare(due.answered, due.payer))
        except (*DATABASE_ERRORS, UsageNotDurable) as error:
            _log.warning("an answer was not looked at", error=type(error).__name__)

    def _due(
        self,
        exchange: Exchange,
        principal: Principal,
        choice: AutoChoice,
        call: Call,
        text: str | None,
    ) -> Sampled | None:
        """The comparison that an answer takes part in, if any: of text with text, by models that
        the caller may use. A judge sees the request alone, and not what it continues."""
        sampling = self._sampling
        if sampling is None or text is None or not self._takes_part(choice, exchange):
            return None
        policy = principal.policy
        course = choice.course
        strong = course.tier_of(exchange.model_used) == course.tier_of(course.decision.strong)
        other = _other(course, strong)
        payer = sampling.payer(principal)
        if other is None or payer is None or not policy.allows_model(sampling.judge):
            return None
        view = read_view(call.request.readable)
        if (
            view.images
            or call.request.images
            or (call.conversation is not None and call.conversation.stored)
        ):
            return None
        prompt = view.text if policy.keep_prompts else None
        return Sampled(Answered(call, principal.team_id, text, strong, other, prompt), payer)


def _other(course: Course, strong: bool) -> Model | None:
    """A model of the tier that did not answer: the strong one, or one of the weakest that there
    is. The caller may use each of a course's models."""
    models, strongest = course.decision.models, course.decision.strong
    if not strong:
        return next((each for each in models if each.name == strongest), None)
    last = models[-1]
    return None if course.tier_of(last.name) == course.tier_of(strongest) else last
