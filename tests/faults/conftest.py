"""Gateways for the drills: one whose breakers never open, and one whose breakers open soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults import models
from tests.harness.gateway import Gateway, Process, sluice
from tests.harness.upstream import Upstream

Start = Callable[[str, dict[str, Any]], Gateway]


@pytest.fixture(scope="package")
def start_gateway(
    new_database: Callable[[str], str],
    new_redis: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Start]:
    """Starts a gateway with its billing consumer for a configuration."""
    started: list[Process] = []

    def start(name: str, config: dict[str, Any]) -> Gateway:
        directory = tmp_path_factory.mktemp(name)
        gateway = Gateway(config, new_database(name), new_redis(), directory)
        started.append(gateway)
        gateway.start()
        billing = Process(sluice("billing"), gateway.env, directory / "billing.log")
        billing.start()
        started.append(billing)
        return gateway

    yield start
    for process in started:
        process.stop()


@pytest.fixture(scope="package")
def scripted() -> Iterator[Upstream]:
    """The upstream behind both gateways."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="package")
def steady(start_gateway: Start, scripted: Upstream) -> Gateway:
    """A gateway on which no drill can rest another's deployments."""
    return start_gateway("faults-steady", models.steady(scripted))


@pytest.fixture(scope="package")
def touchy(start_gateway: Start, scripted: Upstream) -> Gateway:
    """A gateway whose breakers open after `models.MIN_CALLS` calls. Each drill has models of its
    own there, and with them deployments, breakers and cooldowns."""
    return start_gateway("faults-touchy", models.touchy(scripted))
