"""Requests of one turn of the loop are routed together, and each for itself."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.router.auto.gathering import Gathering
from sluice.router.policy import RoutingRefused


class Router:
    """Says which requests were routed, in which order; `bad` is refused."""

    def __init__(self) -> None:
        self.routed: list[Any] = []

    def __call__(self, alias: Any, ask: Any) -> Any:
        self.routed.append(ask)
        if ask == "bad":
            raise RoutingRefused("no model", "model", "unsupported_model")
        return alias, ask


async def test_each_gets_its_own_route() -> None:
    router = Router()
    gathering = Gathering(router)
    alias: Any = "auto"
    asks: list[Any] = ["a", "b", "c"]
    routes: list[Any] = await asyncio.gather(*(gathering.route(alias, ask) for ask in asks))
    assert routes == [("auto", "a"), ("auto", "b"), ("auto", "c")]
    assert router.routed == asks
    later: Any = await gathering.route(alias, asks[0])
    assert later == ("auto", "a")


async def test_one_that_is_refused_is_refused_alone() -> None:
    gathering = Gathering(Router())
    alias: Any = "auto"
    asks: list[Any] = ["a", "bad", "c"]
    results = await asyncio.gather(
        *(gathering.route(alias, ask) for ask in asks), return_exceptions=True
    )
    assert [type(each) for each in results] == [tuple, RoutingRefused, tuple]


async def test_one_that_has_left_is_not_routed_and_the_others_are() -> None:
    router = Router()
    gathering = Gathering(router)
    alias: Any = "auto"
    asks: list[Any] = ["gone", "b"]
    gone, stays = (asyncio.ensure_future(gathering.route(alias, ask)) for ask in asks)
    await asyncio.sleep(0)  # both wait for the end of this turn
    gone.cancel()
    route: Any = await stays
    assert route == ("auto", "b")
    assert gone.cancelled()
    assert router.routed == ["b"]
