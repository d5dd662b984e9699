"""Fixtures for all tests come from plugins, by subject."""

pytest_plugins = [
    "tests.servers",
    "tests.engines.fixtures",
    "tests.harness.fixtures",
    "tests.harness.secured",
]
