"""The real traces, against the published comparison of policies.

SLUICE_TRACES names a directory. `mooncake/` in it has `conversation_trace.jsonl` and
`synthetic_trace.jsonl` of kvcache-ai/Mooncake (FAST25-release/traces); `weka_agentic/` has
`weka_agentic_1h.jsonl`, made of the sessions of callanjfox/kv-cache-tester.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from sluice.router.fleet.report import Report, report
from sluice.router.fleet.simulation import FleetConfig, simulate
from sluice.router.fleet.trace import TraceRequest, assign, read_trace
from sluice.router.pool.placement import PolicyName

CONVERSATION = "mooncake/conversation_trace.jsonl"
SYNTHETIC = "mooncake/synthetic_trace.jsonl"
WEKA = "weka_agentic/weka_agentic_1h.jsonl"

#: Best mean TTFT of the table, 8 replicas of 1,000 blocks.
BEST = {CONVERSATION: 1.60, SYNTHETIC: 1.51, WEKA: 0.76}
SEEDS = (0, 1, 2)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "SLUICE_TRACES" not in os.environ, reason="SLUICE_TRACES does not name the traces"
    ),
]


@cache
def trace(name: str) -> list[TraceRequest]:
    return assign(read_trace(Path(os.environ["SLUICE_TRACES"]) / name), (), 0.0, seed=0)


def runs(name: str, policy: PolicyName = "prefix_load", gateways: int = 1) -> list[Report]:
    return [
        report(simulate(FleetConfig(policy=policy, gateways=gateways, seed=seed), trace(name)))
        for seed in SEEDS
    ]


def mean_ttft(reports: list[Report]) -> float:
    return sum(each.ttft_mean_s or 0.0 for each in reports) / len(reports)


@pytest.mark.parametrize("name", BEST)
def test_prefix_load_is_as_good_as_the_best(name: str) -> None:
    one = mean_ttft(runs(name))
    assert one <= 1.05 * BEST[name]
    assert mean_ttft(runs(name, gateways=4)) <= 1.15 * one


@pytest.mark.parametrize(
    ("name", "policy", "published"),
    [
        (CONVERSATION, "round_robin", 3.36),
        (CONVERSATION, "consistent_hash", 3.18),
        (CONVERSATION, "least_loaded", 1.86),
        (SYNTHETIC, "round_robin", 15.4),
        (WEKA, "round_robin", 8.30),
    ],
)
def test_the_other_rows_come_out_as_published(
    name: str, policy: PolicyName, published: float
) -> None:
    assert mean_ttft(runs(name, policy)) == pytest.approx(published, rel=0.05)
