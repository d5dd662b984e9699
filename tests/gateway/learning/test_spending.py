"""The day's budget for comparisons."""

from __future__ import annotations

import asyncio

import asyncpg

from sluice.gateway.learning.spending import DailyBudget


async def spent(pool: asyncpg.Pool) -> int:
    return int(await pool.fetchval("SELECT sum(cost_nano_usd) FROM comparison_spend") or 0)


async def test_gateways_together_keep_to_it(pool: asyncpg.Pool) -> None:
    budgets = [DailyBudget(pool, 1000) for _ in range(3)]
    held = await asyncio.gather(*(budget.reserve(150) for budget in budgets * 5))
    assert sum(each is not None for each in held) == 6
    assert await spent(pool) == 900


async def test_what_was_not_needed_is_there_again(pool: asyncpg.Pool) -> None:
    budget = DailyBudget(pool, 1000)
    held = await budget.reserve(1000)
    assert held is not None
    assert await budget.reserve(1) is None
    await held.settle(300)
    assert await spent(pool) == 300
    assert await budget.reserve(700) is not None


async def test_a_first_comparison_that_is_too_dear_is_not_made(pool: asyncpg.Pool) -> None:
    assert await DailyBudget(pool, 10).reserve(11) is None
    assert await spent(pool) == 0


async def test_models_that_are_free_cost_no_budget(pool: asyncpg.Pool) -> None:
    assert await DailyBudget(pool, 0).reserve(0) is not None
