"""Comparisons: what is asked of whom, what is paid, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import uuid_utils

from sluice.backends.base import ConnectionLost, Endpoint
from sluice.billing.events import UsageEvent
from sluice.billing.prices import Price
from sluice.gateway.learning.comparison import Answered, Comparisons
from sluice.gateway.learning.judging import JUDGE_TOKENS, strong_is_first
from sluice.gateway.learning.labels import Labels
from sluice.gateway.learning.side_calls import Payer, SideCalls
from sluice.gateway.learning.spending import DailyBudget
from sluice.gateway.output_rates import OutputRates
from sluice.router.catalog import Deployment, Model
from sluice.router.dispatch import StreamStart, UpstreamFailure
from sluice.router.plan import Route
from sluice.router.translation import Call
from sluice.wire.answer import Answer
from sluice.wire.errors import ErrorDetail
from sluice.wire.request import read_request
from sluice.wire.usage import Usage
from tests.billing.samples import TEAM


def model(name: str) -> Model:
    return Model(
        name, 100, frozenset({"chat"}), frozenset({"interactive"}), (Deployment("provider", name),)
    )


OTHER, JUDGE = model("other"), model("judge")
PAYER = Payer(str(UUID(int=7)), str(UUID(int=8)))
PRICES = {"other": Price(output=1_000_000), "judge": Price(output=2_000_000)}  # a token: 1, 2
ENOUGH = 10_000

#: `other` generates 1,000 tokens a second.
RATES = OutputRates()
RATES.learn("provider/other", 1.0, 1_000)


def said(text: str | None, tokens: int = 10) -> Answer:
    body = {"choices": [{"message": {"content": text}}]}
    return Answer(json.dumps(body).encode(), Usage(output_tokens=tokens))


#: Of a model that does not answer.
NEVER = object()


class Upstreams:
    """A dispatcher whose models answer as told."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: dict[str, Call] = {}
        self.reached = asyncio.Event()

    async def dispatch(self, route: Route, call: Call, observer: Any) -> Any:
        name = route.model.name
        self.calls[name] = call
        answer = self.answers[name]
        step: Any = SimpleNamespace(deployment=route.model.deployments[0], number=1)
        observer.attempt_started(step, ())
        if isinstance(answer, StreamStart):
            observer.attempt_streams(answer.stream)
        if answer is NEVER:
            self.reached.set()
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Charged:
    """Takes usage events."""

    def __init__(self) -> None:
        self.events: list[UsageEvent] = []

    def submit(self, event: UsageEvent) -> asyncio.Future[None]:
        self.events.append(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Site:
    """Comparisons over a database and upstreams that answer as told."""

    def __init__(self, pool: asyncpg.Pool, budget: int = ENOUGH, **answers: Any) -> None:
        self.pool = pool
        self.upstreams = Upstreams(**answers)
        self.charged = Charged()
        anything: Any = self.upstreams
        self.comparisons = Comparisons(
            calls=SideCalls(anything, PRICES, self.charged, RATES, "gateway-1", call_seconds=0.2),
            judge=lambda: JUDGE if "judge" in answers else None,
            prices=PRICES,
            budget=DailyBudget(pool, budget),
            labels=Labels(pool),
        )

    async def label(self) -> tuple[Any, ...] | None:
        row = await self.pool.fetchrow(
            "SELECT source, team_id, strong_score, weak_score, prompt FROM route_labels"
        )
        return None if row is None else tuple(row)

    async def spent(self) -> int:
        return int(await self.pool.fetchval("SELECT sum(cost_nano_usd) FROM comparison_spend") or 0)


def answered(strong: bool = False, stream: bool = False, prompt: str | None = None) -> Answered:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": "2+2?"}],
        "max_tokens": 100,
        "stream": stream,
    }
    request = read_request(json.dumps(body).encode(), "messages")
    made = str(uuid_utils.uuid7())
    call = Call(Endpoint.CHAT, request, made, cache_salt="salt", team_id=str(TEAM))
    return Answered(call, str(TEAM), "four", strong, OTHER, prompt)


def verdict(about: Answered, strong: float, weak: float) -> Answer:
    first, second = (strong, weak) if strong_is_first(about.call.request_id) else (weak, strong)
    return said(json.dumps({"first": first, "second": second}), tokens=20)


@pytest.mark.parametrize("strong", [True, False])
async def test_a_comparison(pool: asyncpg.Pool, strong: bool) -> None:
    about = answered(strong, prompt="2+2?")
    site = Site(pool, other=said("five"), judge=verdict(about, 0.9, 0.1))
    assert await site.comparisons.compare(about, PAYER) == "compared"
    assert await site.label() == ("judge", TEAM, 0.9, 0.1, "2+2?")

    asked = site.upstreams.calls["other"]
    assert (asked.tier, asked.priority, asked.team_id) == ("batch", "low", str(TEAM))
    assert asked.request.disable_fallbacks
    assert {each.cache_salt for each in site.upstreams.calls.values()} == {"salt"}
    shown = site.upstreams.calls["judge"].request.members["messages"]
    text = json.loads(bytes(shown))[1]["content"]
    mine, theirs = ("first", "second") if strong_is_first(asked_id(about)) else ("second", "first")
    if not strong:
        mine, theirs = theirs, mine
    assert f"<{mine}_answer>\nfour\n" in text
    assert f"<{theirs}_answer>\nfive\n" in text
    assert "2+2?" in text

    charged = site.charged.events
    assert [(each.model_used, each.cost_nano_usd) for each in charged] == [
        ("other", 10),
        ("judge", 40),
    ]
    assert {(each.team_id, each.key_id, each.tier, each.status) for each in charged} == {
        (PAYER.team_id, PAYER.key_id, "batch", "ok")
    }
    assert len({about.call.request_id, *(each.request_id for each in charged)}) == 3
    assert await site.spent() == 50


def asked_id(about: Answered) -> str:
    return about.call.request_id


class _Response:
    def __init__(self, *pieces: Any) -> None:
        self.pieces = list(pieces)
        self.closed = False

    async def next(self) -> bytes:
        piece: Any = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        if isinstance(piece, asyncio.Event):
            piece.set()
            await asyncio.Event().wait()
        assert isinstance(piece, bytes)
        return piece

    def close(self) -> None:
        self.closed = True


class _Stream:
    done = False
    failure: ErrorDetail | None = None

    def feed(self, piece: bytes) -> bytes:
        return piece

    def end(self) -> bytes:
        self.done = True
        return b""

    def usage(self, prompt_characters: int) -> Usage:
        return Usage(output_tokens=3)


class _Permit:
    failures = 0

    def failed(self) -> None:
        self.failures += 1


def streamed(response: _Response) -> StreamStart:
    given: Any = (_Stream(), response, None, _Permit())
    head = b'data: {"choices": [{"delta": {"content": "fi"}}]}\n\n'
    return StreamStart(head, given[0], given[1], given[2], 0, given[2], given[3])


async def test_streams_are_read_to_their_end(pool: asyncpg.Pool) -> None:
    about = answered(stream=True)
    response = _Response(b'data: {"choices": [{"delta": {"content": "ve"}}]}\n\n')
    site = Site(pool, other=streamed(response), judge=verdict(about, 0.0, 1.0))
    assert await site.comparisons.compare(about, PAYER) == "compared"
    assert "five" in bytes(site.upstreams.calls["judge"].request.members["messages"]).decode()
    assert response.closed
    assert await site.spent() == 3 + 40


async def test_a_stream_that_breaks_is_charged_and_no_answer(pool: asyncpg.Pool) -> None:
    response = _Response(ConnectionLost("gone"))
    site = Site(pool, other=streamed(response), judge=said("never asked"))
    assert await site.comparisons.compare(answered(stream=True), PAYER) == "no_answer"
    [event] = site.charged.events
    assert (event.status, event.cost_nano_usd) == ("error", 3)
    assert response.closed


FAILURE = UpstreamFailure(ErrorDetail("no"), 500)


@pytest.mark.parametrize(
    ("answers", "outcome", "cost"),
    [
        ({"other": FAILURE, "judge": said("{}")}, "failed", 0),
        ({"other": said("five"), "judge": FAILURE}, "failed", 10),
        ({"other": said(None), "judge": said("{}")}, "no_answer", 10),
        ({"other": said("five"), "judge": said("I can't say")}, "no_verdict", 30),
        ({"other": said("five")}, "failed", 0),
        ({"other": NEVER, "judge": said("{}")}, "failed", 100 + 2 * JUDGE_TOKENS),
    ],
)
async def test_what_may_go_wrong(
    pool: asyncpg.Pool, answers: dict[str, Any], outcome: str, cost: int
) -> None:
    site = Site(pool, **answers)
    assert await site.comparisons.compare(answered(), PAYER) == outcome
    assert await site.label() is None
    assert await site.spent() == cost


async def test_beyond_the_budget_nobody_is_asked(pool: asyncpg.Pool) -> None:
    site = Site(pool, budget=100, other=said("five"), judge=said("{}"))
    assert await site.comparisons.compare(answered(), PAYER) == "over_budget"
    assert site.upstreams.calls == {}


async def cancelled(site: Site, reached: asyncio.Event, about: Answered) -> UsageEvent:
    """What is charged of a comparison that is cancelled when it has come so far."""
    task = asyncio.create_task(site.comparisons.compare(about, PAYER))
    async with asyncio.timeout(5):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return site.charged.events[-1]


@pytest.mark.parametrize("slow", ["other", "judge"])
async def test_a_call_that_is_cancelled_is_charged_by_estimate(
    pool: asyncpg.Pool, slow: str
) -> None:
    answers: dict[str, Any] = {"other": said("five"), "judge": said("{}"), slow: NEVER}
    site = Site(pool, **answers)
    event = await cancelled(site, site.upstreams.reached, answered())
    assert (event.model_used, event.status, event.error_code) == (slow, "error", "shutting_down")
    assert event.estimated
    assert event.input_tokens > 0
    assert len(site.charged.events) == (1 if slow == "other" else 2)
    assert await site.spent() == 100 + 2 * JUDGE_TOKENS, "all that was set aside"


async def test_a_call_that_takes_too_long_is_charged_as_its_model_generates(
    pool: asyncpg.Pool,
) -> None:
    site = Site(pool, other=NEVER, judge=said("never asked"))
    assert await site.comparisons.compare(answered(), PAYER) == "failed"
    [event] = site.charged.events
    assert (event.status, event.error_code) == ("error", "upstream_timeout")
    assert event.output_tokens == 100, "a fifth of a second at 1,000 tokens a second, and its bound"
    assert event.cost_nano_usd == 100


async def test_a_stream_that_is_cancelled_is_charged_for_what_has_come(pool: asyncpg.Pool) -> None:
    reached = asyncio.Event()
    response = _Response(b'data: {"choices": []}\n\n', reached)
    site = Site(pool, other=streamed(response), judge=said("never asked"))
    event = await cancelled(site, reached, answered(stream=True))
    assert (event.status, event.cost_nano_usd) == ("error", 3)
    assert response.closed


async def test_nothing_is_charged_of_what_nobody_was_asked(pool: asyncpg.Pool) -> None:
    site = Site(pool, budget=100, other=NEVER, judge=said("{}"))
    task = asyncio.create_task(site.comparisons.compare(answered(), PAYER))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert site.charged.events == []
