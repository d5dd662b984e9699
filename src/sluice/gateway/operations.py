"""What the commands do: run a gateway, a consumer, or all of it; ask the admin API."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import aiohttp
import asyncpg
import click
import msgspec
from prometheus_client import start_http_server

from sluice.backends.simulator import SimulatorBackend, SimulatorConfig
from sluice.backends.simulator_app import SimulatorApp
from sluice.billing.ledger import Ledger, LedgerConsumer
from sluice.gateway.batch.companions import create_companions
from sluice.gateway.batch.doors import create_storage
from sluice.gateway.batch.engine import create_engine, run_engine
from sluice.gateway.batch.runner import HeldCharges
from sluice.gateway.config_file import load_config
from sluice.gateway.connections import connect_database, connect_redis, redis_link
from sluice.gateway.embedded import EmbeddedPostgres, EmbeddedValkey
from sluice.gateway.environment import Environment
from sluice.gateway.listener import create_server
from sluice.gateway.logs import configure_logs
from sluice.gateway.server import check_port, serve_gateway
from sluice.gateway.settings import Config, ConfigError
from sluice.gateway.supervisor import Part, Supervisor
from sluice.gateway.tenancy.changes import Changes
from sluice.gateway.tenancy.first_keys import FirstKeys
from sluice.gateway.wiring import FIRST_TEAM_MAX_TOKENS, create_gateway
from sluice.migrations import migrate

#: Seconds beyond the drain deadline before a gateway that does not stop is killed.
_GRACE_SECONDS = 10.0


class CommandError(Exception):
    """A command can't do its work; the message says why."""


async def serve(config_path: Path | None, host: str, port: int, workers: int) -> None:
    """Run a gateway until told to stop; with several workers, each a process on the same port."""
    config = load_config(config_path)
    environment = Environment.read()
    if not environment.is_worker:
        check_port(host, port)
    if workers > 1:
        await _serve_workers(config, config_path, host, port, workers)
        return
    database_url = _needed(environment.database_url, "SLUICE_DATABASE_URL")
    link = redis_link(_needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await _database(database_url)
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
                    _gateway_part(config, config_path, host, port, env, f"gateway-{number + 1}")
                )
            await supervisor.wait()


async def billing() -> None:
    """Consume the usage stream until told to stop."""
    environment = Environment.read()
    database_url = _needed(environment.database_url, "SLUICE_DATABASE_URL")
    redis = connect_redis(_needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await _database(database_url)
    consumer = LedgerConsumer(redis, Ledger(pool), name=socket.gethostname())
    running = asyncio.create_task(consumer.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.gather(running, return_exceptions=True)
    await redis.aclose()
    pool.terminate()
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


async def batch(config_path: Path | None, metrics_host: str, metrics_port: int | None) -> None:
    """Run batch jobs until told to stop."""
    config = load_config(config_path)
    environment = Environment.read()
    database_url = _needed(environment.database_url, "SLUICE_DATABASE_URL")
    link = redis_link(_needed(environment.redis_url, "SLUICE_REDIS_URL"))
    pool = await _database(database_url)
    await _bootstrap(pool, environment)
    charges = HeldCharges()
    gateway = create_gateway(config, environment, pool, link, charges)
    storage = create_storage(config.batch, environment.files)
    companions = create_companions(config, gateway, storage)
    engine = create_engine(gateway, charges, storage, config.batch, companions)
    if metrics_port is not None:
        start_http_server(metrics_port, metrics_host, gateway.metrics.registry)
    await run_engine(engine, config.server.drain_seconds)


async def learn(config_path: Path | None, once: bool) -> None:
    """Run the loop that teaches `auto`, until told to stop.

    Args:
        once: only do what is due, and train candidates whether or not they are.
    """
    # Threads of its linear algebra spin while others work, and make training ten times slower.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # it takes numpy, whose import would slow every other command down
    from sluice.gateway.learning.loop import LearningLoop  # noqa: PLC0415

    config = load_config(config_path)
    pool = await _database(_needed(Environment.read().database_url, "SLUICE_DATABASE_URL"))
    learning = LearningLoop(pool, config.learning.retraining)
    if once:
        if not await learning.look(train=True):
            raise CommandError("another process is at it")
        await pool.close()
        return
    running = asyncio.create_task(learning.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.gather(running, return_exceptions=True)
    pool.terminate()
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


async def migrate_database() -> list[str]:
    """Apply what is new of the schema; give the versions applied."""
    url = _needed(Environment.read().database_url, "SLUICE_DATABASE_URL")
    with _explained():
        return await migrate(url)


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


async def up(config_path: Path | None, host: str, port: int, data_dir: Path, workers: int) -> None:
    """Run everything on this machine until told to stop."""
    configure_logs()
    config = load_config(config_path)
    given = Environment.read()
    check_port(host, port)
    postgres, valkey = EmbeddedPostgres(data_dir), EmbeddedValkey(data_dir)
    async with Supervisor() as supervisor:
        for server in (postgres, valkey):
            await asyncio.to_thread(server.prepare)
            await supervisor.start(server.part())
        env = {
            **os.environ,
            "SLUICE_DATABASE_URL": postgres.url,
            "SLUICE_REDIS_URL": valkey.url,
            "SLUICE_SPOOL_DIR": os.path.abspath(data_dir / "spool"),
            "SLUICE_FILES_DIR": os.path.abspath(data_dir / "files"),
        }
        await migrate(postgres.url)
        new_keys = await _first_keys(postgres.url, given)
        await supervisor.start(_sluice_part("billing", ["billing"], env))
        await supervisor.start(
            _gateway_part(config, config_path, host, port, env, "gateway", workers)
        )
        await supervisor.start(_batch_part(config, config_path, env))
        await supervisor.start(_router_part(config_path, env))
        _greet(config, host, port, given, new_keys)
        await supervisor.wait()


async def _first_keys(database_url: str, given: Environment) -> dict[str, str]:
    """See that there are a first team's key and an admin token; those made now, by name."""
    pool = await connect_database(database_url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        first = FirstKeys(pool)
        made: dict[str, str] = {}
        team_key = await first.team_key(given.bootstrap_key, FIRST_TEAM_MAX_TOKENS)
        if team_key is not None:
            made["team"] = team_key
        if given.admin_key is None and (token := await first.admin_token()) is not None:
            made["admin"] = token
        return made


def _greet(
    config: Config, host: str, port: int, given: Environment, new_keys: Mapping[str, str]
) -> None:
    """Print where it is and how to call it. Keys that the caller set are not repeated."""
    url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    lines = [f"Sluice is up at {url}/v1"]
    key = '"$SLUICE_BOOTSTRAP_KEY"' if given.bootstrap_key else '"$SLUICE_KEY"'
    if "team" in new_keys and not given.bootstrap_key:
        key = new_keys["team"]
        lines.append(f"First team's key (shown this once): {key}")
    if "admin" in new_keys:
        lines.append(f"Admin key (shown this once): {new_keys['admin']}")
    model = config.models[0].name if config.models else "MODEL"
    body = msgspec.json.encode(
        {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    ).decode()
    lines += [
        "Try it:",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
        f" -H \"Authorization: Bearer {key.strip(chr(34))}\" -d '{body}'",
    ]
    click.echo("\n".join(lines))
    sys.stdout.flush()


def _gateway_part(
    config: Config,
    config_path: Path | None,
    host: str,
    port: int,
    env: Mapping[str, str],
    name: str,
    workers: int = 1,
) -> Part:
    arguments = ["serve", "--host", host, "--port", str(port), "--workers", str(workers)]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    probe = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else host

    async def answers() -> bool:
        return await _status(f"http://{probe}:{port}/health/live") == 200

    return Part(
        name=name,
        command=[*_SLUICE, *arguments],
        env=env,
        answers=answers,
        stop_deadline=config.server.drain_seconds + _GRACE_SECONDS,
    )


def _batch_part(config: Config, config_path: Path | None, env: Mapping[str, str]) -> Part:
    arguments = ["batch", "run"]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    return Part(
        name="batch",
        command=[*_SLUICE, *arguments],
        env=env,
        stop_deadline=config.server.drain_seconds + _GRACE_SECONDS,
    )


def _router_part(config_path: Path | None, env: Mapping[str, str]) -> Part:
    arguments = ["router", "loop"]
    if config_path is not None:
        arguments += ["--config", str(config_path.resolve())]
    return _sluice_part("router", arguments, env)


def _sluice_part(name: str, arguments: list[str], env: Mapping[str, str]) -> Part:
    return Part(name=name, command=[*_SLUICE, *arguments], env=env)


_SLUICE = (sys.executable, "-m", "sluice")


async def _status(url: str) -> int | None:
    timeout = aiohttp.ClientTimeout(total=2)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def _database(url: str) -> asyncpg.Pool:
    with _explained():
        return await connect_database(url)


@contextmanager
def _explained() -> Iterator[None]:
    """While connecting to the database: what is wrong with its URL, or with the way there."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"can't reach the database of SLUICE_DATABASE_URL: {error}") from None
    except ValueError:
        raise ConfigError("SLUICE_DATABASE_URL is not a valid database URL") from None


async def _bootstrap(pool: asyncpg.Pool, environment: Environment) -> None:
    """See that there is a schema, and that the first team's key is known, where one is given."""
    try:
        await Changes(pool).tokens(0)
        if environment.bootstrap_key is not None:
            await FirstKeys(pool).team_key(environment.bootstrap_key, FIRST_TEAM_MAX_TOKENS)
    except asyncpg.UndefinedTableError:
        raise CommandError("the database has no schema yet: run `sluice migrate`") from None


def _needed(value: str | None, name: str) -> str:
    if value is None:
        raise ConfigError(f"{name} is not set")
    return value
