"""What is routed by the compiled code goes where Python alone would have it go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sluice.backends.base import Endpoint
from sluice.router.auto.calibration import Calibration
from sluice.router.auto.choice import AutoChoice
from sluice.router.auto.decision import tell
from sluice.router.auto.documents import RoutingDocument
from sluice.router.auto.router import AutoRouter
from sluice.router.auto.scorers import Scorers
from sluice.router.auto.standings import Standings
from sluice.router.auto.table import RoutingTable
from sluice.router.catalog import Catalog
from sluice.router.complexity.scorer import Scorer
from sluice.router.policy import Router, RoutingRefused
from sluice.wire.request import Request
from tests.router.auto.samples import model, policy
from tests.router.auto.test_router import Caller

MODELS = [
    model("small", "tools", context_length=40_000),
    model("medium", "tools", "json_schema", context_length=50_000),
    model("large", "tools", "vision", "json_schema", context_length=60_000),
]
TIERS = (
    {"name": "economy", "models": {"small": 1}},
    {"name": "middle", "models": {"medium": 1}, "share": 0.3},
    {"name": "quality", "models": {"large": 1}, "share": 0.2},
)
#: Of one alias no two names go by the score: which of them an alias's window is told of first
#: is left open.
NAMES = ("auto", "auto", "auto", "words:economy", "words:quality", "even:balanced")
WORDS = (
    *("please", "prove", "the", "sum", "of", "12", "+", "7", "why", "def x(): return"),
    *("because", "naïve", "数学", "\n", '"a"'),
)
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
ANYBODY, FEW = Caller(lambda _: True), Caller(lambda name: name != "small")


class Counting(AutoRouter):
    """Counts the requests that Python had to route."""

    by_python = 0

    def _route(self, *given: Any) -> AutoChoice:
        self.by_python += 1
        return super()._route(*given)


def site(*, compiled: bool, **more: Any) -> Counting:
    catalog, scorers = Catalog(MODELS, created=0), Scorers()
    aliases = {name.partition(":")[0] for name in NAMES}
    table = RoutingTable({name: RoutingDocument(auto=policy(*TIERS, **more)) for name in aliases})
    scorers.replace(dict.fromkeys(aliases, Scorer(compiled=compiled)))
    now = iter(range(10**9))
    standings = Standings(most=200, clock=lambda: float(next(now)))
    router = Router(catalog, {}, table)
    return Counting(catalog, table, router, scorers, Calibration(), standings)


Asked = tuple[str, Request, Endpoint, bytes | None, bytes | None, Caller]


def asked(draw: random.Random) -> Iterator[Asked]:
    """Requests as they come: conversations that go on among new ones, of all kinds."""
    conversations: list[list[dict[str, Any]]] = []
    while True:
        said = " ".join(draw.choices(WORDS, k=draw.choice((1, 3, 10, 40, 200))))
        if draw.random() < 0.02:
            said *= draw.choice((100, 300))
        picture = [{"type": "text", "text": said}, PICTURE]
        turn = {"role": "user", "content": picture if draw.random() < 0.05 else said}
        if conversations and draw.random() < 0.4:
            messages = draw.choice(conversations)
            answer = {"role": "assistant", "content": "ok"}
            result = {"role": "tool", "content": said}
            messages += [answer, draw.choice((turn, turn, result))]
        else:
            system = [{"role": "system", "content": "Be short."}] if draw.random() < 0.3 else []
            messages = [*system, turn]
            conversations = [*conversations[-20:], messages]
        members: dict[str, Any] = {"messages": messages}
        if draw.random() < 0.1:
            members["tools"] = [{"type": "function"}]
        if draw.random() < 0.1:
            members["response_format"] = {"type": "json_object"}
        text = {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in members.items()}
        request = Request(
            text,
            draw.choice(NAMES),
            max_tokens=draw.choice((None, None, 10, 300, 45_000, 10**30)),
            prompt_characters=len(bytes(text["messages"])),
            images=draw.random() < 0.05,
        )
        session = bytes(draw.choices(range(256), k=draw.choice((0, 1, 20, 64, 100, 300))))
        yield (
            request.model,
            request,
            draw.choice((Endpoint.CHAT, Endpoint.CHAT, Endpoint.RESPONSES)),
            draw.choice((None, None, None, session, b"session")),
            draw.choice((None, None, None, b"x" * 16)),
            draw.choice((ANYBODY, ANYBODY, FEW)),
        )


@pytest.mark.parametrize(
    "more",
    [{}, {"sticky": False}, {"floor": "middle"}, {"floor": "middle", "ceiling": "middle"}],
    ids=["plain", "not-sticky", "floor", "floor-and-ceiling"],
)
def test_requests_go_where_python_sends_them(more: dict[str, Any]) -> None:
    compiled, plain = site(compiled=True, **more), site(compiled=False, **more)
    requests = asked(random.Random(str(more)))
    for number in range(3_000):
        name, request, endpoint, session, known, caller = next(requests)
        seen: list[tuple[Any, ...] | str] = []
        for router in (compiled, plain):
            alias = router.find(name, f"team {number % 2}")
            assert alias is not None
            try:
                choice = router.route(
                    alias, request, endpoint, "interactive", session, known, "id", caller
                )
            except RoutingRefused as refused:
                seen.append(str(refused))
            else:
                course, *own = msgspec.structs.astuple(choice)
                route = course.route
                order = [each.name for each in (route.model, *route.general)]
                said = (course.alias, course.scorer, course.capabilities, course.decision)
                seen.append((order, said, own))
        assert seen[0] == seen[1], number
    assert plain.by_python == 3_000
    assert compiled.by_python < 1_800  # and the others by the compiled code


def test_a_score_on_the_border_is_told_as_python_tells_it() -> None:
    router = site(compiled=True)
    for number in range(400):
        text = msgspec.Raw(msgspec.json.encode([{"role": "user", "content": "why " * number}]))
        alias = router.find("auto", "team")
        assert alias is not None
        request = Request({"messages": text}, "auto")
        choice = router.route(
            alias, request, Endpoint.CHAT, "interactive", None, None, "id", ANYBODY
        )
        assert choice.told.startswith(f"{choice.course.decision.told[0]}{choice.score:.3f};")


@pytest.mark.parametrize("name", ["x" * length for length in range(100, 300, 3)] + ["naïve"])
def test_a_line_that_has_no_room_is_told_by_python(name: str) -> None:
    router = site(compiled=True)
    alias = router.find("auto", "team")
    assert alias is not None
    cheap, *others = alias.policy.tiers  # documents allow no such name
    tiers = (msgspec.structs.replace(cheap, name=name), *others)
    alias.policy = msgspec.structs.replace(alias.policy, tiers=tiers)
    text = msgspec.Raw(msgspec.json.encode([{"role": "user", "content": "prove why"}]))
    request = Request({"messages": text}, "auto")
    for _ in range(2):  # by Python, then by the compiled code
        choice = router.route(
            alias, request, Endpoint.CHAT, "interactive", None, None, "id", ANYBODY
        )
        assert choice.told == tell(choice.course.decision, choice.score, choice.reasons)
    assert router.by_python == 1


def test_requests_that_are_never_alike_are_left_to_python() -> None:
    tiers = ({"name": "economy", "models": {"small": 1, "medium": 1}}, TIERS[2])
    two = Catalog(MODELS, created=0)
    table = RoutingTable({"auto": RoutingDocument(auto=policy(*tiers))})
    router = AutoRouter(two, table, Router(two, {}, table), Scorers(), Calibration(), Standings())
    alias = router.find("auto", "team")
    assert alias is not None
    assert alias.choosing is None
