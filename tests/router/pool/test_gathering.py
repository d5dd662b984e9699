"""What is gathered in one turn of the loop is done together, and each for itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from sluice.router.pool.gathering import Gathering


class Desk:
    """Says what was done, in which order; refuses `bad`."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def work(self, name: str) -> Callable[[], str]:
        return partial(self._do, name)

    def _do(self, name: str) -> str:
        self.done.append(name)
        if name == "bad":
            raise ValueError(name)
        return name.upper()


async def test_each_gets_its_own() -> None:
    desk, gathering = Desk(), Gathering()
    results = await asyncio.gather(*(gathering.do(desk.work(each)) for each in "abc"))
    assert results == ["A", "B", "C"]
    assert desk.done == ["a", "b", "c"]
    assert await gathering.do(desk.work("later")) == "LATER"


async def test_one_that_is_refused_is_refused_alone() -> None:
    desk, gathering = Desk(), Gathering()
    names = ("a", "bad", "c")
    results = await asyncio.gather(
        *(gathering.do(desk.work(each)) for each in names), return_exceptions=True
    )
    assert [type(each) for each in results] == [str, ValueError, str]


async def test_one_that_has_left_has_nothing_done_and_the_others_have() -> None:
    desk, gathering = Desk(), Gathering()
    gone, stays = (asyncio.ensure_future(gathering.do(desk.work(each))) for each in ("gone", "b"))
    await asyncio.sleep(0)  # both wait for the end of this turn
    gone.cancel()
    assert await stays == "B"
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert desk.done == ["b"]


class _Refused(Exception):
    def __init__(self, known: list[weakref.ref[_Refused]]) -> None:
        known.append(weakref.ref(self))


async def test_what_was_refused_is_kept_by_nobody() -> None:
    """Under overload it would be left to the cycle collector by the thousand."""
    gathering = Gathering()
    known: list[weakref.ref[_Refused]] = []

    def refuse() -> None:
        raise _Refused(known)

    async def ask() -> None:
        with contextlib.suppress(_Refused):
            await gathering.do(refuse)

    gc.disable()
    try:
        await asyncio.gather(*(ask() for _ in range(3)))
        await asyncio.sleep(0)
        assert [each() for each in known] == [None, None, None]
    finally:
        gc.enable()
