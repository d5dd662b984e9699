"""`sluice models`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from sluice.backends.worker.manifest import manifest_of
from sluice.gateway.cli.admin_api import call, listed, path
from sluice.gateway.cli.running import show

_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.group()
def models() -> None:
    """Versions of one's own models, by the admin API (SLUICE_URL, SLUICE_ADMIN_KEY)."""


@models.command("list")
@click.option("--name", help="Of one model; all by default.")
def list_models(name: str | None) -> None:
    """List versions."""
    show(listed("/admin/models", {"name": name}))


@models.command("show")
@click.argument("name")
@click.argument("version", default="prod")
def show_model(name: str, version: str) -> None:
    """Show a VERSION, or the one that is in a stage: prod by default."""
    show(call("GET", _of(name, version)))


@models.command("create")
@click.argument("file", type=click.File("rb"))
@click.option("--weights-dir", type=_DIRECTORY, help="Compute the manifest of these weights.")
def create_model(file: Any, weights_dir: Path | None) -> None:
    """Register the version that FILE describes, in YAML or JSON; `-` reads standard input.

    It serves nobody before it is promoted.
    """
    try:
        described = yaml.safe_load(file.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file.name} can't be read: {error}") from None
    if not isinstance(described, dict):
        raise click.ClickException(f"{file.name} describes no model version")
    if weights_dir is not None:
        described["manifest"] = _manifest(weights_dir)
    show(call("POST", "/admin/models", described))


@models.command("promote")
@click.argument("name")
@click.argument("version")
@click.option("--stage", type=click.Choice(["prod", "canary", "shadow"]), default="prod")
@click.option("--share", type=click.FloatRange(0, 100), help="Of a canary, in percent.")
def promote_model(name: str, version: str, stage: str, share: float | None) -> None:
    """Bring a VERSION into a stage; who is in it leaves in the same moment."""
    show(call("POST", f"{_of(name, version)}/promote", {"stage": stage, "share": share}))


@models.command("retire")
@click.argument("name")
@click.argument("version")
def retire_model(name: str, version: str) -> None:
    """Take a VERSION out of its stage. It can be promoted again."""
    show(call("POST", f"{_of(name, version)}/retire"))


@models.command("manifest")
@click.argument("directory", type=_DIRECTORY)
def manifest(directory: Path) -> None:
    """Compute the manifest of the weights in DIRECTORY: each file's SHA-256 and size."""
    click.echo(msgspec.json.format(msgspec.json.encode(_manifest(directory))).decode())


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        computed: dict[str, Any] = msgspec.to_builtins(manifest_of(directory))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{directory}: {error}") from None
    return computed


def _of(name: str, version: str) -> str:
    return path("admin", "models", name, "versions", version)
