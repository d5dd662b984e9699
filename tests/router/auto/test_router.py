"""The stage as a whole: a request becomes a route, and a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from sluice.backends.base import Endpoint
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.choice import AutoChoice
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.router import AutoRouter
from sluice.router.auto.scorers import Scorers
from sluice.router.auto.standings import Standings
from sluice.router.auto.table import RoutingTable
from sluice.router.breakers import Rest
from sluice.router.catalog import Catalog, Trial
from sluice.router.complexity.scored import Scored
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import RequestView
from sluice.router.plan import AllResting, Fallbacks, Plan, Route, Step
from sluice.router.policy import Router, RoutingRefused
from sluice.wire.request import Request
from tests.router.auto.samples import ByLength, document, model, request

SMALL, LARGE = model("small", "tools"), model("large", context_length=9_000)
EASY, HARD = "x" * 10, "x" * 90


@dataclass(frozen=True)
class Caller:
    """Somebody who may use some models."""

    allows_model: Callable[[str], bool]

    @property
    def models(self) -> Callable[[str], bool]:
        return self.allows_model


class ByEase(ByLength):
    """Scores the first request high, and each later one lower."""

    def __init__(self) -> None:
        self.score_of_next = 1.0

    def score(self, view: RequestView) -> Scored:
        self.score_of_next /= 2
        return Scored(2 * self.score_of_next, (), b"features")


class Site:
    """An auto router over two models."""

    def __init__(self, scorer: Scorer | None = None, **more: Any) -> None:
        self.catalog = Catalog([SMALL, LARGE, model("other")], created=5)
        self.table = RoutingTable({"auto": document(**more)})
        fallbacks = {"large": Fallbacks(("other",), content_policy=("small", "other"))}
        scorers = Scorers()
        scorers.replace({"auto": scorer or ByLength()})
        self.router = AutoRouter(
            self.catalog,
            self.table,
            Router(self.catalog, fallbacks, self.table),
            scorers,
            Calibration(),
            Standings(),
        )

    def ask(
        self,
        asked: Request,
        session: bytes | None = None,
        conversation: bytes | None = None,
        may_use: Callable[[str], bool] = lambda _: True,
        endpoint: Endpoint = Endpoint.CHAT,
    ) -> tuple[Route, AutoChoice]:
        alias = self.router.find(asked.model, "t")
        assert alias is not None
        caller = Caller(may_use)
        choice = self.router.route(
            alias, asked, endpoint, "interactive", session, conversation, "id", caller
        )
        return choice.course.route, choice


def names(route: Route) -> list[str]:
    return [each.name for each in (route.model, *route.general)]


def test_names_that_are_aliases() -> None:
    site = Site()
    known = {name: site.router.alias_of(name, "t") for name in ("auto", "auto:quality", "small")}
    assert known == {"auto": "auto", "auto:quality": "auto", "small": None}
    assert site.router.alias_of("nobody:quality", "t") is None


def test_the_route_has_the_tiers_in_order_and_no_fallbacks_of_models() -> None:
    site = Site()
    easy, _ = site.ask(request(EASY))
    hard, _ = site.ask(request(HARD))
    assert (names(easy), names(hard)) == (["small", "large"], ["large", "small"])
    assert [each.name for each in easy.context_overflow] == ["large"]
    assert hard.context_overflow == ()
    assert [each.name for each in hard.content_policy] == ["small"]  # `other` is in no tier


def test_what_is_recorded_of_a_choice() -> None:
    _, choice = Site().ask(request(HARD, tools=[{"type": "function"}]))
    assert (choice.course.alias, choice.score, choice.course.scorer) == ("auto", 0.9, "by-length")
    assert choice.course.decision.tier == "economy"  # the only one with tools
    assert choice.course.capabilities == {"chat", "tools"}
    assert choice.tokens == 60
    assert choice.features == b"features"


def test_requests_of_a_kind_take_one_course_until_models_change() -> None:
    site = Site()
    first, again = (site.ask(request(HARD))[1].course for _ in range(2))
    assert first is again
    assert first != site.ask(request(EASY))[1].course
    site.catalog.replace(site.catalog.models())  # as when one has another price
    assert site.ask(request(HARD))[1].course != first


def test_the_reason_is_one_line_of_what_led_there() -> None:
    _, choice = Site().ask(request(HARD))
    assert choice.reason("large", 1) == (
        'quality; by=score; score=0.900; threshold=0.700; because="length=+0.50"'
    )
    assert choice.reason("small", 1).endswith("; instead=economy; after=rest")
    assert choice.reason("small", 2).endswith("; instead=economy; after=failure")


def test_a_conversation_stays_in_its_tier() -> None:
    site = Site()
    first, *later = [site.ask(request(text), session=b"s")[1] for text in (HARD, EASY, EASY)]
    assert [each.course.decision.tier for each in (first, *later)] == ["quality"] * 3
    assert [each.score for each in later] == [0.9, 0.9]
    assert site.ask(request(EASY), session=b"r")[1].course.decision.tier == "economy"


def test_a_conversation_that_gets_harder_moves_up() -> None:
    site = Site()
    tiers = [
        site.ask(request(text), session=b"s")[1].course.decision.tier for text in (EASY, HARD, EASY)
    ]
    assert tiers == ["economy", "quality", "quality"]


def test_a_conversation_without_a_session_is_known_by_its_beginning() -> None:
    site = Site()

    def tier(*texts: str) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        return site.ask(request("", messages=messages))[1].course.decision.tier

    assert tier(HARD) == "quality"
    assert tier(HARD, "hm", EASY) == "quality"
    assert tier("other", "hm", EASY) == "economy"


@pytest.mark.parametrize(("size", "found"), [(10, 200_000), (60_000, 30_000), (200_000, 8_000)])
@pytest.mark.parametrize("name", ["messages", "input"])
def test_an_agent_that_was_asked_once_stays_in_its_tier(name: str, size: int, found: int) -> None:
    """Results of tools follow, and no word of the user."""
    site = Site(scorer=ByEase())
    task = {"role": "user", "content": "Mend it. " + "x" * size}
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "y" * found}
    loop: list[Any] = [task]
    tiers = []
    for _ in range(3):
        tiers.append(site.ask(request("", **{name: loop}))[1].course.decision.tier)
        loop = [*loop, called, result]
    assert tiers == ["quality"] * 3
    assert site.ask(request("", **{name: loop[1:]}))[1].course.decision.tier == "economy"


def test_a_conversation_that_is_known_is_kept_whatever_the_request_says() -> None:
    site = Site()
    first = site.ask(request(HARD))[1]
    later = site.ask(request(EASY), conversation=first.conversation)[1]
    assert (later.course.decision.tier, later.conversation) == ("quality", first.conversation)
    named = site.ask(request(EASY), session=b"s", conversation=first.conversation)[1]
    assert named.course.decision.tier == "economy"
    assert named.conversation != first.conversation


def test_who_begins_alike_begins_anew() -> None:
    site = Site()
    site.table.replace({("auto", None): document(floor="quality")})
    assert site.ask(request(EASY))[1].course.decision.tier == "quality"
    site.table.replace({})
    assert site.ask(request(EASY))[1].course.decision.tier == "economy"


def test_conversations_need_not_be_kept_together() -> None:
    site = Site(sticky=False)
    tiers = [site.ask(request(text), session=b"s")[1].course.decision.tier for text in (HARD, EASY)]
    assert tiers == ["quality", "economy"]


def test_a_word_chooses_and_does_not_stick() -> None:
    site = Site()
    chosen = msgspec.structs.replace(request(EASY), model="auto:quality")
    assert site.ask(chosen, session=b"s")[1].reason("large", 1).startswith("quality; by=quality;")
    assert site.ask(request(EASY), session=b"s")[1].course.decision.tier == "economy"


def test_a_key_reaches_only_its_models() -> None:
    site = Site()
    route, _ = site.ask(request(HARD), may_use=lambda name: name != "large")
    assert names(route) == ["small"]
    with pytest.raises(RoutingRefused, match="No model of `auto` may be used by this key"):
        site.ask(request(HARD), may_use=lambda _: False)


def test_what_was_decided_once_holds_only_for_requests_like_it() -> None:
    site = Site()

    def order(asked: Request, may_use: Callable[[str], bool] = lambda _: True) -> list[str]:
        return names(site.ask(asked, may_use=may_use)[0])

    long = msgspec.structs.replace(request(EASY), max_tokens=5_000)
    for _ in range(2):
        assert order(request(EASY)) == ["small", "large"]
        assert order(long) == ["large"]
        assert order(request(EASY, tools=[{"type": "function"}])) == ["small"]
        assert order(request(EASY), lambda name: name == "large") == ["large"]


def test_the_threshold_follows_the_traffic() -> None:
    site = Site()
    assert site.ask(request(HARD))[1].course.decision.threshold == 0.7
    for _ in range(200):
        site.ask(request("x" * 50))
    assert site.ask(request(HARD))[1].course.decision.threshold == 0.5


def test_what_no_model_can_do_is_refused_by_name() -> None:
    with pytest.raises(RoutingRefused) as caught:
        Site().ask(request(EASY, response_format={"type": "json_schema", "json_schema": {}}))
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_model")
    with pytest.raises(RoutingRefused, match="has embeddings"):
        Site().ask(request(EASY), endpoint=Endpoint.EMBEDDINGS)


def test_a_route_follows_what_changes() -> None:
    site = Site()
    site.ask(request(EASY))
    site.catalog.replace([replace(SMALL, context_length=2_000), LARGE])
    assert site.ask(request(EASY))[0].model.context_length == 2_000
    weights = RoutingDocument(weights={"p/small-0": 7})
    site.table.replace({("small", "t"): weights, ("auto", None): document()})
    assert site.ask(request(EASY))[0].model.deployments[0].weight == 7


def test_a_version_that_is_tried_is_asked_before_the_proven_one() -> None:
    site = Site()
    canary = replace(SMALL, context_length=2_000)
    tried = replace(SMALL, canary=Trial(canary, 100.0))
    site.catalog.replace([tried, LARGE])
    route, _ = site.ask(request(EASY))
    assert [(each.name, each.context_length) for each in (route.model, *route.general)] == [
        ("small", 2_000),
        ("small", 1_000),
        ("large", 9_000),
    ]


def test_while_every_strong_deployment_rests_a_weaker_one_answers_and_says_so() -> None:
    route, choice = Site().ask(request(HARD))

    def rests(deployment: Any) -> Rest | None:
        return Rest(10.0, False) if deployment.model.startswith("large") else None

    step = Plan(route, rests, lambda: 0.5).next()
    assert isinstance(step, Step)
    assert (step.model.name, step.number) == ("small", 1)
    assert choice.reason(step.model.name, step.number).endswith("instead=economy; after=rest")
    assert choice.course.tier_of(step.model.name) == "economy"


def test_while_all_rest_the_caller_hears_when_to_come_back() -> None:
    route, _ = Site().ask(request(HARD))
    assert isinstance(Plan(route, lambda _: Rest(10.0, False), lambda: 0.5).next(), AllResting)
