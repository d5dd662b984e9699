"""Limits that change, and limits while Redis is away."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.drills.conftest import StartFleet
from tests.drills.demand import wish
from tests.drills.fleet import STEADY, Fleet
from tests.drills.judge import Wanted
from tests.harness.limited import LimitedKey
from tests.harness.polling import eventually

pytestmark = pytest.mark.slow

#: A change through the admin API is in force everywhere within so many seconds.
IN_FORCE_SECONDS = 1.0


def test_changes_are_in_force_on_every_process_within_a_second(start_fleet: StartFleet) -> None:
    fleet = start_fleet()
    limited = fleet.limited
    team = limited.team()
    keys = [limited.key(team) for _ in range(2)]
    stop = [{"period": "day", "limit_usd": "0"}]
    changes: dict[str, tuple[Callable[[], None], set[int]]] = {
        "requests a minute": (
            lambda: limited.change("key", keys[0].id, requests_per_minute=0),
            {429},
        ),
        "no limit any more": (
            lambda: limited.change("key", keys[0].id, requests_per_minute=None),
            {200},
        ),
        "tokens a minute": (lambda: limited.change("team", team, tokens_per_minute=0), {429}),
        "tokens again": (lambda: limited.change("team", team, tokens_per_minute=None), {200}),
        "slots": (
            lambda: limited.change("organisation", keys[0].organisation, max_concurrent=0),
            {429},
        ),
        "slots again": (
            lambda: limited.change("organisation", keys[0].organisation, max_concurrent=None),
            {200},
        ),
        "budget": (lambda: limited.change("team", team, budgets=stop), {429}),
        "no budget": (lambda: limited.change("team", team, budgets=[]), {200}),
        "revocation": (lambda: limited.archive("key", keys[0].id), {401}),
        "archived team": (lambda: limited.archive("team", team), {401}),
    }
    for name, (change, statuses) in changes.items():
        key = keys[1] if name == "archived team" else keys[0]
        seconds = until_in_force(fleet, key, change, statuses)
        print(f"{name}: on all of {len(fleet.gateways)} after {seconds * 1e3:.0f} ms")
        assert seconds < IN_FORCE_SECONDS


def until_in_force(
    fleet: Fleet, key: LimitedKey, change: Callable[[], None], statuses: set[int]
) -> float:
    """Seconds from the admin call's answer until every gateway answers so."""
    body = wish(Wanted("x", 1), STEADY, 5)
    change()
    began = time.monotonic()
    waiting = list(fleet.gateways)
    while waiting and time.monotonic() < began + 2 * IN_FORCE_SECONDS:
        waiting = [
            gateway
            for gateway in waiting
            if gateway.request("POST", "/v1/chat/completions", body, key.secret).status_code
            not in statuses
        ]
    return time.monotonic() - began


def chat(fleet: Fleet, key: LimitedKey, number: int = 0) -> httpx.Response:
    """One answered request at one of the gateways."""
    gateway = fleet.gateways[number % len(fleet.gateways)]
    return gateway.request(
        "POST", "/v1/chat/completions", wish(Wanted("x", 1), STEADY, 5), key.secret
    )


def statuses(fleet: Fleet, key: LimitedKey, requests: int) -> Counter[int]:
    """What so many requests, one after another at all gateways in turn, are answered with."""
    return Counter(chat(fleet, key, number).status_code for number in range(requests))


@pytest.mark.parametrize("empty", [False, True], ids=["as it was", "empty"])
def test_without_redis_what_is_limited_is_refused(start_fleet: StartFleet, empty: bool) -> None:
    fleet = start_fleet(gateways=2)
    limited = fleet.limited
    free = limited.key()
    slots = limited.key(max_concurrent=2)
    budget = limited.key(budgets=[{"period": "month", "limit_usd": "0.0013"}])
    spent = 0
    while chat(fleet, budget, spent).status_code == 200:
        spent += 1
    assert spent > 50
    fleet.settle()
    fleet.valkey.kill()
    for key in (slots, budget):
        eventually(lambda key=key: statuses(fleet, key, 4) == {503: 4}, 5)  # type: ignore[misc]
        assert int(chat(fleet, key).headers["retry-after"]) >= 1
    assert statuses(fleet, free, 4) == {200: 4}
    fleet.valkey.start()
    if empty:
        fleet.valkey_command("FLUSHALL")
    eventually(lambda: statuses(fleet, slots, 4) == {200: 4}, 5)
    assert statuses(fleet, budget, 8) == {429: 8}, "a budget is not forgotten"


def test_without_redis_local_limits_hold_where_that_is_wished(start_fleet: StartFleet) -> None:
    fleet = start_fleet(gateways=2, redis_away="open")
    limited = fleet.limited
    rate = limited.key(requests_per_minute=20)
    budget = limited.key(budgets=[{"period": "month", "limit_usd": "0.0013"}])
    statuses(fleet, budget, 2)
    eventually(lambda: statuses(fleet, budget, 2) == {200: 2}, 5)
    for gateway in fleet.gateways:  # each knows of the other
        eventually(lambda gateway=gateway: gateway.metric("gw_limit_sharers") == 2, 5)  # type: ignore[misc]
    fleet.valkey.kill()
    answers = statuses(fleet, rate, 40)
    assert set(answers) == {200, 429}
    assert 18 <= answers[200] <= 20, "each gateway lets half of it in"
    let_in = statuses(fleet, budget, 200)
    assert set(let_in) == {200, 429}
    fleet.valkey.start()
    fleet.valkey_command("FLUSHALL")
    eventually(lambda: chat(fleet, budget).status_code == 429, 10)
    fleet.settle()
    ledger = fleet.ledger("key_id", budget.id)
    print(f"budget while Redis was away: {ledger / 1_300_000:.1%}")
    assert ledger <= 1_300_000
    assert statuses(fleet, rate, 25)[200] <= 20
