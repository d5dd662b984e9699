"""A budget that is set, taken away and set again counts what was spent in its period, all of it."""

from __future__ import annotations

from typing import Any

from tests.gateway.quotas.conftest import Pair
from tests.harness.gateway import ADMIN_KEY
from tests.harness.limited import LimitedKey
from tests.harness.polling import eventually
from tests.harness.twins import body_of

#: A request reserves 0.0042 USD and costs 0.000138 USD: after 20 of them, this is too little.
TIGHT = "0.0065"


def budget(usd: str) -> list[dict[str, Any]]:
    return [{"period": "month", "limit_usd": usd}]


def ask(pair: Pair, key: LimitedKey, number: int = 0) -> int:
    gateway = (pair.one, pair.other)[number % 2]
    return pair.post(
        "/v1/chat/completions", body_of("chat", "good", "spend"), key.secret, gateway
    ).status_code


def spend(pair: Pair, key: LimitedKey, requests: int) -> None:
    for number in range(requests):
        assert ask(pair, key, number) == 200


def stored(pair: Pair, key: LimitedKey, requests: int) -> bool:
    """Whether the ledger has so many requests of a key."""
    path = f"/v1/usage/records?team_id={key.team}&limit=100"
    return len(pair.one.api("GET", path, key=ADMIN_KEY)["data"]) == requests


def test_a_budget_counts_what_was_spent_before_it_was_set(limited: Pair) -> None:
    key = limited.tenants.key()
    spend(limited, key, 20)
    eventually(lambda: stored(limited, key, 20))
    limited.tenants.change("key", key.id, budgets=budget(TIGHT))
    eventually(lambda: ask(limited, key) == 429, 1)
    eventually(lambda: ask(limited, key, 1) == 429, 1)


def test_a_budget_that_was_taken_away_remembers(limited: Pair) -> None:
    key = limited.tenants.key(budgets=budget("1"))
    spend(limited, key, 10)
    limited.tenants.change("key", key.id, budgets=[])
    eventually(lambda: not has_budget(limited, key), 2)
    spend(limited, key, 10)
    eventually(lambda: stored(limited, key, 20))
    limited.tenants.change("key", key.id, budgets=budget(TIGHT))
    eventually(lambda: ask(limited, key) == 429, 1)
    eventually(lambda: ask(limited, key, 1) == 429, 1)


def has_budget(pair: Pair, key: LimitedKey) -> bool:
    """Whether any gateway still has one."""
    return any(
        gateway.api("GET", "/v1/limits", key=key.secret)["key"]["budgets"]
        for gateway in (pair.one, pair.other)
    )
