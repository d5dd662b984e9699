"""Outcomes on their way into Postgres: none of them waits for ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from sluice.gateway.batch.finisher import GROUP_CHARACTERS, Finisher, fitting
from sluice.gateway.batch.items import Items, Outcome, Place, Result


class FakeItems:
    """Settles everything, once it has failed with the errors that it was given."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def settle(self, outcomes: list[Outcome]) -> set[Place]:
        if self._errors:
            raise self._errors.pop(0)
        return {outcome.place for outcome in outcomes}


def finisher(*errors: Exception) -> tuple[Finisher, list[Any]]:
    seen: list[Any] = []
    return Finisher(cast("Items", FakeItems(*errors)), lambda *each: seen.append(each)), seen


RESULT = Result(UUID(int=1), 1, True, "{}")


async def test_what_postgres_does_not_take_now_is_written_later() -> None:
    made, seen = finisher(asyncpg.PostgresConnectionError(), OSError())
    await made.put(RESULT)
    assert seen == [(RESULT, True)]


async def test_large_results_are_not_written_together() -> None:
    large = [replace(RESULT, line=line, text="x" * (GROUP_CHARACTERS // 2)) for line in range(5)]
    assert [fitting(large), fitting(large[:1]), fitting([RESULT] * 7)] == [2, 1, 7]
    assert fitting([replace(RESULT, text="x" * (GROUP_CHARACTERS + 1)), RESULT]) == 1
    made, seen = finisher()
    await asyncio.gather(*(made.put(each) for each in large))
    assert [outcome.line for outcome, _ in seen] == [0, 1, 2, 3, 4]


async def test_a_fault_of_ours_is_told_and_holds_up_nothing_else() -> None:
    made, seen = finisher(TypeError("a fault"))
    with pytest.raises(TypeError):
        await made.put(RESULT)
    await made.put(RESULT)
    assert seen == [(RESULT, True)]
