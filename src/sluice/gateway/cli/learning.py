"""The commands of `sluice router` that keep `auto` learning; those that train by hand are beside
them."""

from __future__ import annotations

import base64
from pathlib import Path

import click

from sluice.gateway.cli.admin_api import call, listed, path
from sluice.gateway.cli.running import run, show
from sluice.gateway.learning.operation import learn
from sluice.gateway.logs import configure_logs

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("loop")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SLUICE_CONFIG",
    help="YAML file; its `learning` section is read.",
)
@click.option("--once", is_flag=True, help="Do what is due, train candidates, and end.")
def loop(config_path: Path | None, once: bool) -> None:
    """Retrain on what comes in, promote what proves better, watch for drift."""
    configure_logs()
    run(learn(config_path, once))


@click.command("models")
@click.argument("alias")
def list_models(alias: str) -> None:
    """List the models of an ALIAS."""
    show(listed(_of(alias)))


@click.command("upload")
@click.argument("alias")
@click.argument("file", type=_FILE)
def upload(alias: str, file: Path) -> None:
    """Add the model in FILE to an ALIAS; it is not used before it is promoted."""
    text = base64.b64encode(file.read_bytes()).decode()
    show(call("POST", _of(alias), {"file": text}))


@click.command("promote")
@click.argument("alias")
@click.argument("version", type=click.IntRange(1))
def promote(alias: str, version: int) -> None:
    """Score an ALIAS's requests with the model of a VERSION from now on."""
    show(call("POST", f"{_of(alias)}/{version}/promote"))


@click.command("rollback")
@click.argument("alias")
def rollback(alias: str) -> None:
    """Withdraw the model that scores an ALIAS's requests."""
    show(call("POST", f"{_of(alias)}/rollback"))


#: To be added to `sluice router`.
COMMANDS = (loop, list_models, upload, promote, rollback)


def _of(alias: str) -> str:
    return path("admin", "routing", alias, "models")
