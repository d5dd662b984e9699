"""Work for requests that come in one turn of the event loop, done one right after the other.

A loaded gateway takes some twenty requests a turn. Code and tables that the request before has
just used are still in the processor's caches: work for twenty in a row takes less than half of the
time that it takes where it is done for each among all else that a request needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Done = TypeVar("Done")


class Gathering:
    """Gathers work of one kind until the present turn of the loop is over, then does all of it."""

    def __init__(self) -> None:
        """Of nothing."""
        self._waiting: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    async def do(self, work: Callable[[], Done]) -> Done:
        """What a request's work gives, or raises.

        A request that is cancelled meanwhile may or may not have had its work done.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._do_all)
        done: asyncio.Future[Done] = loop.create_future()
        self._waiting.append((done, work))
        try:
            return await done
        finally:
            del done  # it holds an error, whose traceback holds this frame

    def _do_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done, work in waiting:
            if done.done():  # its request is over
                continue
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - whatever it is, it is that request's alone
                done.set_exception(error)
        del waiting, done, work  # an error's traceback holds this frame
