"""Fixtures of the drills."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.fleet import Fleet
from tests.drills.site import Site
from tests.servers import RunningServer


@pytest.fixture
def site(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> Iterator[Site]:
    """An installation of the test's own, running."""
    with contextlib.ExitStack() as stack:
        running = Site(postgres_server(), valkey_server(), tmp_path)
        stack.callback(running.close)
        running.start()
        yield running


StartFleet = Callable[..., Fleet]


@pytest.fixture
def start_fleet(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> Iterator[StartFleet]:
    """Starts a fleet with servers of its own."""
    with contextlib.ExitStack() as stack:

        def start(gateways: int = 4, **admission: Any) -> Fleet:
            fleet = Fleet(postgres_server(), valkey_server(), tmp_path, gateways, **admission)
            stack.callback(fleet.close)
            fleet.start()
            return fleet

        yield start
