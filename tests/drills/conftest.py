"""Fixtures of the drills."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.embedded.postgres import EmbeddedPostgres
from sluice.migrations import migrate
from tests.drills.fleet import Fleet
from tests.drills.site import Site
from tests.servers import RunningServer, data_directory, running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """A data directory with a database that has the schema; nothing runs there."""
    with data_directory() as path:
        server = RunningServer(EmbeddedPostgres(path))
        try:
            server.start()
            asyncio.run(migrate(server.url))
            server.stop()
        finally:
            server.kill()
        yield path


@pytest.fixture
def postgres_server(cluster: Path) -> Iterator[Callable[[], RunningServer]]:
    """Starts Postgres servers that the test may stop, each with data of its own.

    They begin as copies: every drill has one, and to make its data takes several times as long.
    """

    def copied(path: Path) -> EmbeddedPostgres:
        # By a program that keeps the owner, who is somebody else under root.
        subprocess.run(["cp", "-a", str(cluster / "postgres"), str(path)], check=True)
        return EmbeddedPostgres(path)

    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(running(copied))


@pytest.fixture
def site(
    postgres_server: Callable[[], RunningServer],
    valkey_server: Callable[[], RunningServer],
    tmp_path: Path,
) -> Iterator[Site]:
    """An installation of the test's own, running."""
    with contextlib.ExitStack() as stack:
        made = Site(postgres_server(), valkey_server(), tmp_path)
        stack.callback(made.close)
        made.start()
        yield made


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
