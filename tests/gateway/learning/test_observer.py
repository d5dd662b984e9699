"""Which answers are compared."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from sluice.backends.base import Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.exchange import Admitted, Exchange
from sluice.gateway.learning.comparison import Answered
from sluice.gateway.learning.observer import AnswerObserver, Sampling
from sluice.gateway.learning.side_calls import Payer
from sluice.gateway.relay import WholeEnding
from sluice.gateway.tenancy.limits import Limits, Policy, Scope
from sluice.router.translation import Call, Conversation
from sluice.wire.request import Request
from sluice.wire.usage import Usage
from tests.router.auto.samples import choice, model, request

SMALL, LARGE = model("small"), model("large")
TEAM = str(UUID(int=7))
ANSWER = WholeEnding(b'{"choices":[{"message":{"content":"four"}}]}')


class Compared:
    """Takes comparisons, and makes none."""

    def __init__(self) -> None:
        self.taken: list[Answered] = []

    async def compare(self, answered: Answered, payer: Payer) -> str:
        self.taken.append(answered)
        return "compared"


async def compared(
    asked: Request, policy: Policy, conversation: Conversation | None = None
) -> list[Answered]:
    """The comparisons of one answer of the weak tier, where all are to be compared."""
    taken: Any = Compared()
    nothing: Any = None
    payer = Payer(TEAM, "k")
    observer = AnswerObserver(
        nothing, taken, Sampling("judge", 100, lambda _: payer), lambda _: None, lambda _: None
    )
    exchange = Exchange(Endpoint.CHAT, {"headers": [], "method": "POST"}, nothing, nothing)
    exchange.choice = choice()
    exchange.admitted = Admitted(
        Principal("o", TEAM, "team", "k", policy), SMALL, asked, "interactive"
    )
    exchange.model_used = "small"
    call = Call(Endpoint.CHAT, asked, exchange.id, conversation=conversation, team_id=TEAM)
    observer.listen(exchange, call)
    exchange.ended("ok", Usage(output_tokens=1))
    observer.answered(exchange, call, ANSWER)
    tasks = [each for each in asyncio.all_tasks() if each.get_name() == "answer-observer"]
    await asyncio.gather(*tasks)
    return list(taken.taken)


def policy_of(**limits: Any) -> Policy:
    return Policy.of([Scope("team", TEAM, "team", Limits(**limits))])


@pytest.mark.parametrize(("keep", "kept"), [(None, None), (False, None), (True, "2+2?")])
async def test_text_is_kept_only_where_somebody_said_so(
    keep: bool | None, kept: str | None
) -> None:
    [due] = await compared(request("2+2?"), policy_of(keep_prompts=keep))
    assert (due.text, due.other, due.prompt) == ("four", LARGE, kept)


async def test_what_a_judge_would_not_see_whole_is_not_compared() -> None:
    asked, policy = request("and now?"), policy_of()
    history = ({"role": "user", "content": "2+2?"},)
    assert len(await compared(asked, policy, Conversation("r"))) == 1
    assert await compared(asked, policy, Conversation("r", history)) == []


async def test_a_judge_that_the_caller_may_not_use_sees_nothing() -> None:
    assert await compared(request("2+2?"), policy_of(allowed_models=("small", "large"))) == []
