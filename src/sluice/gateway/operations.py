"""What the commands do that run a gateway, a batch worker, or all of it."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import asyncpg
from prometheus_client import start_http_server

from sluice.backends.simulator import SimulatorBackend, SimulatorConfig
from sluice.backends.simulator_app import SimulatorApp
from sluice.gateway.batch.companions import create_companions
from sluice.gateway.batch.doors import create_storage
from sluice.gateway.batch.engine import create_engine, run_engine
from sluice.gateway.batch.runner import HeldCharges
from sluice.gateway.config_file import load_config
from sluice.gateway.connections import open_database, redis_link
from sluice.gateway.environment import Environment, needed
from sluice.gateway.listener import create_server
from sluice.gateway.parts import gateway_part
from sluice.gateway.ports import check_port
from sluice.gateway.server import serve_gateway
from sluice.gateway.settings import Config
from sluice.gateway.startup_errors import CommandError
from sluice.gateway.supervisor import Supervisor
from sluice.gateway.tenancy.changes import Changes
from sluice.gateway.tenancy.first_keys import FIRST_TEAM_MAX_TOKENS, FirstKeys
from sluice.gateway.wiring import create_gateway


async def serve(config_path: Path | None, host: str, port: int, workers: int) -> None:
    """Run a gateway until told to stop; with several workers, each a process on the same port."""
    config = load_config(config_path)
    environment = Environment.read()
    if not environment.is_worker:
        check_port(host, port)
    if workers > 1:
        await _serve_workers(config, config_path, host, port, workers)
        return
    database_url = needed(environment.database_url, "SLUICE_DATABASE_URL")
    link = redis_link(needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await open_database(database_url)
    await _bootstrap(pool, environment)
    gateway = create_gateway(config, environment, pool, link)
    await serve_gateway(gateway, host, port, config.server.drain_seconds)


async def _serve_workers(
    config: Config, config_path: Path | None, host: str, port: int, workers: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-metrics-") as metrics:
        env = {**os.environ, "SLUICE_WORKER": "1", "PROMETHEUS_MULTIPROC_DIR": metrics}
        async with Supervisor() as supervisor:
            for number in range(workers):
                await supervisor.start(
                    gateway_part(config, config_path, host, port, env, f"gateway-{number + 1}")
                )
            await supervisor.wait()


async def batch(config_path: Path | None, metrics_host: str, metrics_port: int | None) -> None:
    """Run batch jobs until told to stop."""
    config = load_config(config_path)
    environment = Environment.read()
    database_url = needed(environment.database_url, "SLUICE_DATABASE_URL")
    link = redis_link(needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await open_database(database_url)
    await _bootstrap(pool, environment)
    charges = HeldCharges()
    gateway = create_gateway(config, environment, pool, link, charges)
    storage = create_storage(config.batch, environment.files)
    companions = create_companions(config, gateway, storage)
    engine = create_engine(gateway, charges, storage, config.batch, companions)
    if metrics_port is not None:
        start_http_server(metrics_port, metrics_host, gateway.metrics.registry)
    await run_engine(engine, config.server.drain_seconds)


async def simulator(host: str, port: int, model: str, config: SimulatorConfig) -> None:
    """Serve the simulator over HTTP until told to stop."""
    check_port(host, port)
    server = create_server(SimulatorApp(SimulatorBackend(config), model), host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve())
    await stop.wait()
    server.stop()
    await serving


async def _bootstrap(pool: asyncpg.Pool, environment: Environment) -> None:
    """See that there is a schema, and that the first team's key is known, where one is given."""
    try:
        await Changes(pool).tokens(0)
        if environment.bootstrap_key is not None:
            await FirstKeys(pool).team_key(environment.bootstrap_key, FIRST_TEAM_MAX_TOKENS)
    except asyncpg.UndefinedTableError:
        raise CommandError("the database has no schema yet: run `sluice migrate`") from None
