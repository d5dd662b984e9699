"""Fixtures for all tests come from plugins, by subject."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = [
    "tests.servers",
    "tests.engines.fixtures",
    "tests.harness.fixtures",
    "tests.harness.secured",
]

#: Files and folders whose tests take more than a few seconds together, besides those that say so
#: themselves.
SLOW = (
    "backends/worker",
    "faults",
    "gateway/batch/test_companions.py",
    "gateway/batch/test_native.py",
    "gateway/batch/test_served.py",
    "gateway/learning/test_whole_loop.py",
    "gateway/batch/test_engine.py",
    "gateway/batch/test_items.py",
    "gateway/cli/test_start_errors.py",
    "gateway/quotas/test_budget_changes.py",
    "gateway/quotas/test_counted_calls.py",
    "gateway/quotas/test_exits.py",
    "gateway/registry/test_served.py",
    "gateway/routing/test_auto.py",
    "gateway/routing/test_changes.py",
    "gateway/routing/test_cli.py",
    "gateway/test_admin_concurrency.py",
    "gateway/test_admin_records.py",
    "gateway/test_admin_roles.py",
    "gateway/test_cases_billing.py",
    "gateway/test_cases_cancellation.py",
    "gateway/test_cases_streaming.py",
    "gateway/test_idempotency_tapes.py",
    "gateway/test_openapi.py",
    "gateway/test_idempotency.py",
    "gateway/test_idempotency_lifetimes.py",
    "gateway/test_oidc.py",
    "gateway/test_security_http.py",
    "gateway/test_security_prefix_cache.py",
    "gateway/test_security_secrets.py",
    "router/pool/test_live_gateway.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them; and where several processes share them, have the slow files first.

    One that begins last would keep the other processes waiting.
    """
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here).as_posix()
        if path.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if path.startswith("drills"):
            item.add_marker(pytest.mark.drill)
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
