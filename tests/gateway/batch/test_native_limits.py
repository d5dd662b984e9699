"""What limits and budgets have to say of items that would go to a provider's own batches."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sluice.gateway.auth import Principal
from sluice.gateway.tenancy.limits import Budget, Limits, Policy, Scope
from tests.gateway.batch.native_site import NativeSite


async def test_a_budget_without_room_for_all_of_it_lets_nothing_go(native_site: NativeSite) -> None:
    budget = Limits(budgets=(Budget("day", Decimal(1)),))
    policy = Policy.of([Scope("team", "t", "t", budget)])
    native_site.keys.principal = lambda key_id: Principal("", "team", "name", key_id, policy)
    native_site.admission.left = 10_000_000
    batch = await native_site.submit(count=100)
    assert await native_site.states(batch.id) == ["pending"] * 100
    assert native_site.openai.batches == {}
    native_site.admission.left = None
    batch = await native_site.submit(count=100)
    assert await native_site.states(batch.id) == ["native"] * 100
    assert native_site.admission.asked[1] > 10_000_000


async def test_what_is_at_providers_already_counts_against_a_budget(
    native_site: NativeSite,
) -> None:
    budget = Limits(budgets=(Budget("day", Decimal(1)),))
    levels: tuple[Any, ...] = ("organisation", "team", "key")
    policies = {level: Policy.of([Scope(level, "x", "x", budget)]) for level in levels}
    for level in levels:
        principal = Principal("", "team", "name", "key", policies[level])
        native_site.keys.principal = lambda _, principal=principal: principal  # type: ignore[misc]
        native_site.admission.left = None
        native_site.admission.asked.clear()
        first = await native_site.submit()
        (cost,) = native_site.admission.asked
        native_site.admission.left = cost * 3 // 2
        second = await native_site.submit()
        assert native_site.admission.asked == [cost, 2 * cost]
        assert await native_site.states(second.id) == ["pending"] * 3
        native_site.openai.end(list(native_site.openai.batches.values())[-1])
        await native_site.look()
        assert await native_site.states(first.id) == ["done"] * 3
        third = await native_site.submit()
        assert await native_site.states(third.id) == ["native"] * 3
        native_site.openai.end(list(native_site.openai.batches.values())[-1])
        await native_site.look()


async def test_a_rate_that_is_used_up_is_waited_for(native_site: NativeSite) -> None:
    limited = Limits(requests_per_minute=1)
    policy = Policy.of([Scope("team", "t", "t", limited)])
    native_site.keys.principal = lambda key_id: Principal("", "team", "name", key_id, policy)
    native_site.admission.left, native_site.admission.dimension = 0, "requests"
    batch = await native_site.submit()
    await native_site.look()
    assert await native_site.states(batch.id) == ["native"] * 3
    assert native_site.openai.batches == {}
    native_site.admission.left = None
    await native_site.look()
    assert len(native_site.openai.batches) == 1
