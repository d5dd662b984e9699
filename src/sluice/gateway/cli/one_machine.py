"""`sluice up`."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.gateway import one_machine
from sluice.gateway.cli.running import run
from sluice.gateway.cli.shared_options import config_option, host_option, port_option


@click.command()
@config_option
@host_option
@port_option
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
    run(one_machine.up(config_path, host, port, data_dir, workers))
