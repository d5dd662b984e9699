"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SLUICE_CONFIG",
    help="YAML file; without one: providers by the keys in the environment, else the simulator.",
)
host_option = click.option("--host", default="127.0.0.1", show_default=True)
port_option = click.option("--port", default=8080, show_default=True, type=click.IntRange(1, 65535))
