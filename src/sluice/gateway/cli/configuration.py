"""`sluice config`: the configuration file."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.gateway.config_file import load_config
from sluice.gateway.startup_errors import ConfigError


@click.group()
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
