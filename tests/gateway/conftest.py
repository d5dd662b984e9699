"""Fixtures that several of the gateway's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.fixtures import StartGateway
from tests.harness.twins import Twins, start_twins


@pytest.fixture(scope="session")
def twins(start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Two gateways for requests with keys; see `tests.harness.twins`."""
    yield from start_twins(start_gateway, tmp_path_factory.mktemp("twins"))
