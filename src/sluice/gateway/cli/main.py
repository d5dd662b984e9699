"""The commands that run something; those that administer are added to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sluice import __version__
from sluice.gateway import operations
from sluice.gateway.cli.batch import batch
from sluice.gateway.cli.batch_jobs import cancel, results, submit, watch
from sluice.gateway.cli.keys import key
from sluice.gateway.cli.learning import COMMANDS as LEARNING
from sluice.gateway.cli.login import login
from sluice.gateway.cli.models import models
from sluice.gateway.cli.organisations import organisation
from sluice.gateway.cli.reports import audit, limits, usage
from sluice.gateway.cli.router import router
from sluice.gateway.cli.routing import routing
from sluice.gateway.cli.running import run
from sluice.gateway.cli.teams import team
from sluice.gateway.cli.tokens import token
from sluice.gateway.config_file import load_config
from sluice.gateway.engine_options import engine_options, engine_settings, simulator_config
from sluice.gateway.logs import configure_logs
from sluice.gateway.settings import ConfigError
from sluice.gateway.simulate_command import simulate_command
from sluice.gateway.worker_command import worker

_config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SLUICE_CONFIG",
    help="YAML file; without one: providers by the keys in the environment, else the simulator.",
)
_host_option = click.option("--host", default="127.0.0.1", show_default=True)
_port_option = click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(1, 65535)
)


@click.group()
@click.version_option(__version__, prog_name="sluice")
def main() -> None:
    """An LLM gateway: one OpenAI-compatible door to every model a company pays for."""


@main.command()
@_config_option
@_host_option
@_port_option
@click.option(
    "--data-dir",
    default=".sluice",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where Postgres and Valkey keep their data.",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
def up(config_path: Path | None, host: str, port: int, data_dir: Path, workers: int) -> None:
    """Run everything on this machine: Postgres, Valkey, gateway and billing."""
    run(operations.up(config_path, host, port, data_dir, workers))


@main.command()
@_config_option
@_host_option
@_port_option
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
def serve(config_path: Path | None, host: str, port: int, workers: int) -> None:
    """Run the gateway against SLUICE_DATABASE_URL and SLUICE_REDIS_URL."""
    configure_logs()
    run(operations.serve(config_path, host, port, workers))


@main.command()
def billing() -> None:
    """Move usage events from the stream into Postgres."""
    configure_logs()
    run(operations.billing())


@main.command()
def migrate() -> None:
    """Bring the database's schema up to date."""
    for version in run(operations.migrate_database()):
        click.echo(f"applied {version}")


@main.command()
@_host_option
@click.option("--port", default=8101, show_default=True, type=click.IntRange(1, 65535))
@click.option("--model", default="simulator", show_default=True, help="Name that it serves.")
@click.option("--ttft-ms", default=20.0, show_default=True, help="Time to first token.")
@click.option("--itl-ms", default=5.0, show_default=True, help="Time between tokens.")
@engine_options
def simulator(
    host: str, port: int, model: str, ttft_ms: float, itl_ms: float, **engine: Any
) -> None:
    """Serve a vLLM look-alike over HTTP; any option from `--kv-blocks` on gives it an engine."""
    configure_logs()
    config = simulator_config(ttft_ms, itl_ms, engine_settings(engine))
    run(operations.simulator(host, port, model, config))


@main.group()
def config() -> None:
    """The configuration file."""


@config.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def check_config(file: Path) -> None:
    """Validate FILE."""
    try:
        loaded = load_config(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{file}: ok, {len(loaded.providers)} providers, {len(loaded.models)} models")


for _command in (submit, watch, results, cancel):
    batch.add_command(_command)
for _command in LEARNING:
    router.add_command(_command)
for _group in (batch, organisation, team, key, token, models, router, routing):
    main.add_command(_group)
for _command in (audit, limits, login, usage, worker, simulate_command):
    main.add_command(_command)
