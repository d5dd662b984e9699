"""Metrics: as many series as the configuration has, whatever callers send (case 91)."""

from __future__ import annotations

import uuid
from typing import Any

from sluice.backends.base import Endpoint
from sluice.gateway.auth import Principal
from sluice.gateway.exchange import Admitted, Exchange, Outcome
from sluice.gateway.metrics import Metrics
from sluice.router.catalog import Model
from sluice.wire.request import read_request
from sluice.wire.usage import Usage


async def receive() -> Any:
    raise AssertionError


async def send(message: dict[str, Any]) -> None:
    raise AssertionError


MODEL = Model("alias", 100, frozenset({"chat"}), frozenset({"interactive"}), ())


def exchange(outcome: Outcome = "ok", usage: Usage | None = None) -> Exchange:
    made = Exchange(Endpoint.CHAT, {"headers": [], "method": "POST"}, receive, send)
    made.ended(outcome, usage or Usage(10, 4, 0, 5))
    return made


def admitted(user: str = "u") -> Admitted:
    body = b'{"model":"alias","user":"%s"}' % user.encode()
    principal = Principal(str(uuid.uuid4()), str(uuid.uuid4()), "team", str(uuid.uuid4()))
    return Admitted(principal, MODEL, read_request(body, "messages"), "interactive")


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None
    return found


def series(metrics: Metrics) -> int:
    return sum(not line.startswith(b"#") for line in metrics.render().splitlines())


async def test_case_91_users_teams_and_keys_make_no_series() -> None:
    metrics = Metrics()
    metrics.observe(exchange(), admitted())
    before = series(metrics)
    for number in range(2000):
        metrics.observe(exchange(), admitted(f"user-{number}"))
    assert series(metrics) == before


async def test_tokens_are_counted_by_kind() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.observe(exchange(), admitted())
    labels = {"model": "alias", "tier": "interactive"}
    kinds = {"input": 30, "cached_input": 12, "output": 15}
    for kind, count in kinds.items():
        assert value(metrics, "gw_tokens_total", kind=kind, **labels) == count


async def test_outcomes_are_counted_apart() -> None:
    metrics = Metrics()
    outcomes: tuple[Outcome, ...] = ("ok", "ok", "cancelled", "upstream_error")
    for outcome in outcomes:
        metrics.observe(exchange(outcome), admitted())
    labels = {"endpoint": "chat/completions", "model": "alias", "tier": "interactive"}
    assert value(metrics, "gw_requests_total", outcome="ok", **labels) == 2
    assert value(metrics, "gw_requests_total", outcome="cancelled", **labels) == 1


async def test_the_time_per_token_leaves_out_the_first() -> None:
    metrics = Metrics()
    done = exchange(usage=Usage(1, output_tokens=5))
    done.first_token_at, done.last_token_at = done.started + 1, done.started + 3
    metrics.observe(done, admitted())
    labels = {"model": "alias", "tier": "interactive"}
    assert abs(value(metrics, "gen_ai_server_time_to_first_token_seconds_sum", **labels) - 1) < 1e-6
    per_token = value(metrics, "gen_ai_server_time_per_output_token_seconds_sum", **labels)
    assert abs(per_token - 0.5) < 1e-6


async def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    metrics = Metrics()
    done = exchange(usage=Usage(1, output_tokens=1))
    done.first_token_at = done.last_token_at = done.started
    metrics.observe(done, admitted())
    count = "gen_ai_server_time_per_output_token_seconds_count"
    assert value(metrics, count, model="alias", tier="interactive") == 0


def test_commits_are_counted_by_events() -> None:
    metrics = Metrics()
    metrics.committed("stream", 5, 0.001)
    metrics.committed("spool", 2, 0.1)
    metrics.spooled_bytes(77)
    assert value(metrics, "gw_usage_events_total", path="stream") == 5
    assert value(metrics, "gw_usage_events_total", path="spool") == 2
    assert value(metrics, "gw_usage_commit_seconds_count") == 2
    assert value(metrics, "gw_usage_spooled_bytes") == 77


def test_two_gateways_in_one_process_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.committed("stream", 5, 0.001)
    assert value(second, "gw_usage_events_total", path="stream") == 0
