"""`GET /v1/limits`: what a key may do, level by level and together; and the models it may use."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.backends.base import Endpoint
from sluice.gateway.quotas.standing import BudgetState, ScopeState
from sluice.gateway.routes.limits import effective, levels
from sluice.gateway.tenancy.limits import Budget, Level, Limits, Policy, Scope
from tests.harness.administration import Admin
from tests.harness.gateway import Gateway
from tests.harness.polling import eventually

LEVELS: tuple[Level, ...] = ("organisation", "team", "key")


def policy(*limits: Limits) -> Policy:
    return Policy.of(
        Scope(level, f"{level}-id", f"{level}-name", each, "Asia/Tokyo")
        for level, each in zip(LEVELS, limits, strict=True)
    )


class TestTogether:
    def test_the_tightest_binds_and_its_level_is_named(self) -> None:
        shown = effective(
            policy(
                Limits(requests_per_minute=10, tokens_per_minute=5),
                Limits(requests_per_minute=7, max_concurrent=0),
                Limits(requests_per_minute=9),
            ),
            [],
        )
        assert shown["requests_per_minute"] == {"limit": 7, "level": "team"}
        assert shown["tokens_per_minute"] == {"limit": 5, "level": "organisation"}
        assert shown["max_concurrent"] == {"limit": 0, "level": "team"}

    def test_without_limits_nothing_binds(self) -> None:
        shown = effective(policy(Limits(), Limits(), Limits()), ["a", "b"])
        assert shown == {
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "max_concurrent": None,
            "budgets": [],
            "allowed_models": ["a", "b"],
            "allowed_endpoints": list(Endpoint),
            "default_max_tokens": None,
            "max_output_tokens": None,
            "max_stored_bytes": None,
            "priority": "normal",
            "isolate_prefix_cache": False,
            "keep_prompts": False,
        }

    def test_every_budget_binds(self) -> None:
        day = Budget(period="day", limit_usd=Decimal("1.50"))
        month = Budget(period="month", alert_usd=Decimal(20))
        shown = effective(
            policy(Limits(budgets=(day, month)), Limits(), Limits(budgets=(day,))), []
        )
        one = {"period": "day", "limit_usd": "1.50", "alert_usd": None}
        assert shown["budgets"] == [
            {"level": "organisation", **one},
            {"level": "organisation", "period": "month", "limit_usd": None, "alert_usd": "20"},
            {"level": "key", **one},
        ]

    @given(st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3))
    def test_of_equal_limits_the_highest_level_is_named(self, given_: list[int | None]) -> None:
        shown = effective(policy(*(Limits(max_concurrent=each) for each in given_)), [])
        known = [each for each in given_ if each is not None]
        if not known:
            assert shown["max_concurrent"] is None
        else:
            level = LEVELS[given_.index(min(known))]
            assert shown["max_concurrent"] == {"limit": min(known), "level": level}


class TestLevels:
    def test_each_has_its_own(self) -> None:
        shown = levels(policy(Limits(priority="low"), Limits(), Limits(max_concurrent=2)), [])
        assert list(shown) == list(LEVELS)
        assert (shown["team"]["id"], shown["team"]["name"]) == ("team-id", "team-name")
        assert shown["organisation"]["time_zone"] == "Asia/Tokyo"
        assert shown["organisation"]["priority"] == "low"
        assert shown["key"]["max_concurrent"] == 2
        assert shown["team"]["max_concurrent"] is None
        assert not any("state" in level for level in shown.values())

    def test_what_remains_is_told_where_it_is_known(self) -> None:
        start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
        budget = BudgetState("month", 1_500_000_000, 1, start, end, alerted=True)
        state = ScopeState("team", "team-id", requests_remaining=3, budgets=[budget])
        shown = levels(
            policy(Limits(), Limits(), Limits()), [state, ScopeState("key", "another's")]
        )
        assert shown["team"]["state"] == {
            "requests_remaining": 3,
            "tokens_remaining": None,
            "in_progress": None,
            "budgets": [
                {
                    "period": "month",
                    "spent_usd": "1.5",
                    "reserved_usd": "0.000000001",
                    "starts_at": start,
                    "ends_at": end,
                    "alerted": True,
                }
            ],
        }
        assert "state" not in shown["key"]


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Admin:
    return Admin(gateway)


def ready(gateway: Gateway, key: str) -> dict[str, Any]:
    """The limits of a key, once the gateway knows it."""
    answer = eventually(
        lambda: (a := gateway.request("GET", "/v1/limits", None, key)).status_code == 200 and a, 2
    )
    limits: dict[str, Any] = answer.json()
    return limits


def test_a_key_reads_its_own(admin: Admin, gateway: Gateway) -> None:
    organisation = admin.organisation(time_zone="Europe/Berlin", requests_per_minute=100)
    budget = {"period": "week", "limit_usd": "12.50"}
    team = admin.team(
        organisation=organisation["id"], budgets=[budget], allowed_models=["vllm-*", "simulated"]
    )
    key = admin.new_key(team, name="mine", allowed_models=["simulated", "slow"], priority="low")
    shown = ready(gateway, key["key"])
    for level, record in (("organisation", organisation), ("team", team), ("key", key)):
        own = {name: record[name] for name in ("id", "name", *Limits.__struct_fields__)}
        assert {name: shown[level][name] for name in own} == own
    assert shown["organisation"]["time_zone"] == "Europe/Berlin"
    effective = shown["effective"]
    assert effective["requests_per_minute"] == {"limit": 100, "level": "organisation"}
    assert effective["budgets"] == [{"level": "team", **budget, "alert_usd": None}]
    assert (effective["allowed_models"], effective["priority"]) == (["simulated"], "low")


def test_models_are_those_of_the_key(admin: Admin, gateway: Gateway) -> None:
    key = admin.new_key(admin.team(allowed_models=["vllm-*", "simulated"]))["key"]
    ready(gateway, key)
    models = gateway.api("GET", "/v1/models", key=key)
    assert [model["id"] for model in models["data"]] == ["vllm-alias", "simulated"]
    assert (models["first_id"], models["last_id"]) == ("vllm-alias", "simulated")
    hidden = gateway.request("GET", "/v1/models/openai-alias", None, key)
    assert hidden.status_code == 404
    assert hidden.json() == gateway.request("GET", "/v1/models/no-such", None, key).json()
    assert gateway.request("GET", "/v1/models/simulated", None, key).status_code == 200
    assert len(gateway.api("GET", "/v1/models", key=admin.key)["data"]) > 2


def test_limits_are_a_keys(admin: Admin, gateway: Gateway) -> None:
    assert admin.ask("GET", "/v1/limits").status_code == 403
    assert gateway.request("GET", "/v1/limits", None, None).status_code == 401
