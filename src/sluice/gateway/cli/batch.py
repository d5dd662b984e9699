"""`sluice batch`: workers that run batch jobs; those that submit and watch them are beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sluice.gateway import operations
from sluice.gateway.cli.batch_jobs import cancel, results, submit, watch
from sluice.gateway.cli.running import run
from sluice.gateway.logs import configure_logs


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--metrics-port",
            type=click.IntRange(1, 65535),
            help="Serve Prometheus metrics there.",
        ),
        click.option("--metrics-host", default="127.0.0.1", show_default=True),
        click.option(
            "--config",
            "config_path",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="SLUICE_CONFIG",
            help="The gateways' own.",
        ),
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@_run_options
@click.pass_context
def batch(
    context: click.Context, config_path: Path | None, metrics_host: str, metrics_port: int | None
) -> None:
    """Run batch jobs, against SLUICE_DATABASE_URL and SLUICE_REDIS_URL; or submit and watch them.

    Any number of workers may run, anywhere; each stops when it is told to, and then gives back
    what it has not finished.
    """
    if context.invoked_subcommand is None:
        _work(config_path, metrics_host, metrics_port)


@batch.command("run")
@_run_options
def run_worker(config_path: Path | None, metrics_host: str, metrics_port: int | None) -> None:
    """Run batch jobs: the same as without a command."""
    _work(config_path, metrics_host, metrics_port)


def _work(config_path: Path | None, metrics_host: str, metrics_port: int | None) -> None:
    configure_logs()
    run(operations.batch(config_path, metrics_host, metrics_port))


for _command in (submit, watch, results, cancel):
    batch.add_command(_command)
